#!/usr/bin/env bash
# natgrad train --switch-to-sgd goes on with what it kept last, SGD's part or the method's, on one rank and on two.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
run=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp --batch 8 --log-every 2
  --lr-schedule constant --quiet --switch-to-sgd 0.75 --switch-lr 0.02)

expect 0 '*natgrad: --switch-to-sgd: this run ends before, with step 4' "$natgrad" train "${run[@]}" --steps 4 --ranks 2 --out parts
for steps in 6 8 12 16; do # 6: the last that the method takes
  expect 0 '*' "$natgrad" train --out parts --ranks $((steps == 12 ? 1 : 2)) --resume --steps $steps --quiet
done
expect 0 '' "$natgrad" train "${run[@]}" --steps 16 --out alone
expect 0 '' "$natgrad" train "${run[@]}" --steps 16 --ranks 2 --out pair
if command -v python3 >/dev/null; then # not in a bare Debian
  python3 - {parts,alone,pair}/checkpoint-16.safetensors <<'END' || fail "parts, ranks: other weights"
import json, struct, sys
def weights(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8:8 + n])
    spans = [h[k]["data_offsets"] for k in sorted(h) if k != "__metadata__" and k != "natgrad.state"]
    return [x for lo, hi in spans for x in struct.unpack("<%df" % ((hi - lo) // 4), b[8 + n + lo:8 + n + hi])]
a, b, c = map(weights, sys.argv[1:])
near = 1e-4 * max(map(abs, b))  # ranks add in another order, 16 steps of f32
sys.exit(not all(abs(x - y) < near and abs(z - y) < near for x, y, z in zip(a, b, c)))
END
fi

# The resumed run takes no other numbers, and its settings stay those it began with.
expect 2 'natgrad: --switch-lr: is *' "$natgrad" train --out alone --resume --steps 20 --switch-lr 0.5
grep -q '"method": "natgrad"' parts/config.json || fail "config.json: $(cat parts/config.json)"
expect 2 'natgrad: --switch-to-sgd: has no effect with method adamw *' "$natgrad" train "${run[@]}" --steps 16 --method adamw
finish
