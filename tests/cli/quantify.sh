#!/usr/bin/env bash
# natgrad train --quantify: six numbers a line, in order, and weights as without it.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
train() { "$natgrad" train --data digits --model mlp-16-1 --batch 256 --log-every 1 --quiet "$@"; }

for method in natgrad eva mfac 'efcp --density 0.5' 'ggt --window 4'; do
  rm -rf with without
  # shellcheck disable=SC2086 # several words
  train --method $method --damping 0.1 --steps 6 --quantify 1 --out with || fail "$method"
  # shellcheck disable=SC2086
  train --method $method --damping 0.1 --steps 6 --out without || fail "$method, without"
  cmp -s with/checkpoint/model-6.safetensors without/checkpoint/model-6.safetensors || fail "$method: other weights"
  grep -q scaling without/log.jsonl && fail "$method: scaling without being asked"
  command -v python3 >/dev/null || continue # not in a bare Debian
  python3 - with/log.jsonl <<'END' || fail "$method: $(head -1 with/log.jsonl)"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="ascii")]
steps = [line for line in lines if line["event"] == "step"]
assert len(steps) == 6
for line in steps:
    least, low, half, high, most = (line["scaling_" + x] for x in ("min", "25", "50", "75", "max"))
    assert 0 <= least <= low <= half <= high <= most and 0 < line["scaling_mean"] < most
    assert least < high
END
done

finish
