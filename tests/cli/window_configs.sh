#!/usr/bin/env bash
# Train two steps with each configuration of a window method, on generated data, with a small window; test the short
# names of options.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
configs=$NG_SOURCE_DIR/configs
images=(--data synthetic:classes=10,image=32x32x3,train=16,test=4 --batch 4 --steps 2 --window 2 --augment none --quiet)
for name in cifar10-resnet20-mfac cifar10-resnet20-efcp cifar10-resnet20-lowrank resnet18-efcp; do
  "$natgrad" train --config "$configs/$name.json" "${images[@]}" --out "$name" >out.txt 2>err || fail "$name: $(cat err)"
  grep -q '"why": "done"' "$name/log.jsonl" || fail "$name: $(tail -1 "$name/log.jsonl")"
done
tiny=(--data synthetic:classes=4,features=12,train=64,test=8 --batch 8 --steps 12 --log-every 1 --quiet)
"$natgrad" train --config "$configs/features-logreg-sparse-ggt.json" "${tiny[@]}" --out features >out.txt 2>err || fail "features: $(cat err)"
grep -q '"why": "done"' features/log.jsonl || fail "features: $(tail -1 features/log.jsonl)"

# Short and long names of options give the same settings and losses, also in lists of compare.
losses() { grep '"event": "step"' "$1/log.jsonl" | sed 's/, "ms".*//'; }
same=(--model mlp --method mfac --window 3 "${tiny[@]}")
"$natgrad" train "${same[@]}" --store topk --density 0.25 --out short >out.txt 2>err || fail "short: $(cat err)"
"$natgrad" train "${same[@]}" --window-store topk --window_density 0.25 --out long >out.txt 2>err || fail "long: $(cat err)"
"$natgrad" train "${same[@]}" --out dense >out.txt 2>err || fail "dense: $(cat err)"
[[ $(losses short | wc -l) == 12 ]] && diff <(losses short) <(losses long) || fail "short names give other losses"
diff <(losses short) <(losses dense) >/dev/null && fail "the store has no effect"
diff <(grep -v '"out"' short/config.json) <(grep -v '"out"' long/config.json) || fail "short names are kept"
"$natgrad" train "${same[@]}" --store lowrank --rank 2 --out rank2 >out.txt 2>err || fail "--rank: $(cat err)"
grep -q '"window_rank": 2' rank2/config.json || fail "--rank: $(grep rank rank2/config.json)"
"$natgrad" compare --methods mfac:window=3,efcp:window=3,density=0.25 --model mlp "${tiny[@]:0:6}" --seeds 1 --quiet --out both >out.txt 2>err ||
  fail "compare: $(cat err)"
grep -q 'density 0.25' both/table.txt || fail "compare: $(cat both/table.txt)"
expect 2 "natgrad: --window_density: '0' *" "$natgrad" train --method efcp --density 0
expect 0 '*--store, --density and --rank*' "$natgrad" help train
finish
