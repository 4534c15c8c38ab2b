#!/usr/bin/env bash
# natgrad train --quantify: six ordered numbers in each line, and unchanged weights, for every method, also without
# curvature.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
train() { "$natgrad" train --data digits --model mlp-16-1 --batch 256 --log-every 1 --quiet "$@"; }

for method in 'natgrad --damping 0.1' 'eva --damping 0.1' 'mfac --damping 0.1' 'efcp --damping 0.1 --density 0.5' \
  'ggt --damping 0.1 --window 4' sgd 'sgd --momentum 0' adamw; do
  rm -rf with without
  # shellcheck disable=SC2086 # several words
  train --method $method --steps 6 --quantify 1 --out with || fail "$method"
  # shellcheck disable=SC2086
  train --method $method --steps 6 --out without || fail "$method, without"
  checkpoints_match with without !natgrad. || fail "$method: other weights"
  grep -q scaling without/log.jsonl && fail "$method: scaling without being asked"
  command -v python3 >/dev/null || continue # not in a bare Debian
  python3 - with/log.jsonl "$method" <<'END' || fail "$method: $(head -1 with/log.jsonl)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="ascii")]
steps = [line for line in lines if line["event"] == "step"]
assert len(steps) == 6
for line in steps:
    least, low, half, high, most = (line["scaling_" + x] for x in ("min", "25", "50", "75", "max"))
    assert 0 <= least <= low <= half <= high <= most and 0 < line["scaling_mean"] < most
    assert least < high
    assert 0 <= line["angle"] <= 180 and abs(line["rotation"] - 90 * (1 - line["cosine"])) < 1e-6 and line["stretch"] > 0
    if sys.argv[2] == "sgd --momentum 0":  # the direction is the gradient: r = |g / (g + 1e-8)|
        assert line["cosine"] > 1 - 1e-15 and line["rotation"] < 1e-13 and line["stretch"] == 1 and abs(half - 1) < 1e-3
END
done

# A resumed run keeps the setting; compare keeps it for all methods.
train --method sgd --lr-schedule constant --steps 2 --quantify 1 --out on || fail sgd
"$natgrad" train --out on --resume --steps 4 --quiet || fail resume
[ "$(grep -c scaling_25 on/log.jsonl)" = 4 ] || fail "resume: $(cat on/log.jsonl)"
expect 2 'natgrad: --damping: method sgd has no curvature' train --method sgd --steps 2 --quantify 1 --damping 0.1

finish
