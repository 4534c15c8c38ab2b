#!/usr/bin/env bash
# natgrad plan: published volumes of a ResNet-50, times computed by hand, recommendations, and errors.  t_plan and
# plan_run.sh compare planned bytes with runs.
. "$(dirname "$0")/lib.sh"

# KAISA's ResNet-50 (54 layers): one triangle of every factor is 76,967,027 numbers, a gradient of every layer
# 25,503,912; pieces begin on lines of 64 bytes, two for each layer.
# of FILE STRATEGY FIELD: print a number of the strategy
of() { grep -F "\"strategy\":\"$2\"," "$1" | sed -E "s/.*\"$3\":([-+.e0-9]+).*/\1/"; }
between() { [[ $2 -ge $3 && $2 -le $4 ]] || fail "$1 is $2, expected $3 to $4"; }

"$natgrad" plan --json --ranks 4 --spatial full >"$scratch/r50" || fail "plan of a resnet50"
# Norms of the method natgrad: 26,560 channels in 53 layers, three numbers each; two numbers if weights are sent.
between "natgrad, comm-opt: sums" "$(of "$scratch/r50" "natgrad, comm-opt" sums_bytes)" $((4 * (76967027 + 3 * 26560))) \
  $((4 * (76967027 + 3 * 26560) + 64 * (108 + 53)))
for row in "kaisa, comm-opt" "kaisa, mem-opt"; do
  between "$row: sums" "$(of "$scratch/r50" "$row" sums_bytes)" $((4 * 76967027)) $((4 * 76967027 + 64 * 108))
done
between "kaisa, mem-opt: gradients" "$(of "$scratch/r50" "kaisa, mem-opt" deliver_bytes)" $((4 * 25503912)) \
  $((4 * 25503912 + 64 * 54))
# numbers of a layer: p^2 + q^2 of eigenvectors, p + q of eigenvalues
for row in "kaisa, comm-opt" mpd-kfac; do
  between "$row: results" "$(of "$scratch/r50" "$row" share_bytes)" $((4 * (153851562 + 82492))) $((4 * (153851562 + 82492) + 64 * 600))
done
for none in "kaisa, comm-opt;deliver_bytes" "kaisa, mem-opt;share_bytes" "dp-kfac;sums_bytes" \
  "spngd, weights by owners;deliver_bytes"; do
  between "$none" "$(of "$scratch/r50" "${none%;*}" "${none#*;}")" 0 0
done
between "spngd: weights" "$(of "$scratch/r50" "spngd, weights by owners" weights_bytes)" $((4 * (25503912 + 2 * 26560))) $((4 * (25503912 + 2 * 26560)))
most=0
for row in "natgrad, statistics=local" "natgrad, statistics=owner" "natgrad, mem-opt" "natgrad, hybrid-opt 1/2" "natgrad, comm-opt"; do
  held=$(of "$scratch/r50" "$row" held_most)
  [[ $held -gt $most ]] || fail "$row holds $held, no more than the one before"
  most=$held
done

# One layer of orders 4 and 3 on four ranks: recompute all times by the formulas of the help.
echo '[{"name": "fc", "kind": "linear", "in": 4, "out": 3, "positions": 5}]' >"$scratch/fc.json"
"$natgrad" plan --json --model "$scratch/fc.json" --ranks 4 --batch 2 --stat-period 2 --solve-period 5 --gemm 1k \
  --solve 10 --bandwidth 1kB/s --latency 1e6 >"$scratch/fc" || fail "plan of one layer"
cat >"$scratch/again.awk" <<'AWK'
function get(key,   x) { return match($0, "\"" key "\":[-+.e0-9]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : -1 }
function sum(n,   halves, whole) { # recursive halving and doubling, or recursive doubling
  halves = 2 * 2 + 2 * (W - 1) / W * n / 1000; whole = 2 * (1 + n / 1000)
  return n == 0 ? 0 : halves < whole ? halves : whole
}
function to_owners(n) { return n == 0 ? 0 : 2 + (W - 1) / W * n / 1000 } # recursive halving
function down(k, n, messages) { return n == 0 || k < 2 ? 0 : (k == 4 ? 2 : 1) * messages + n / 1000 }
function is(part, seconds,   ms) {
  ms = get(part)
  if (ms - 1000 * seconds > 1e-5 * (1 + ms) || 1000 * seconds - ms > 1e-5 * (1 + ms)) { print name ": " part " is " ms ", expected " 1000 * seconds; bad = 1 }
}
/"fastest":/ { next }
BEGIN { W = 4; B = 2; pos = 5; p = 4; q = 3; F = 2; I = 5; gemm = 1000; solve = 10 }
{
  name = $0; sub(/.*"strategy":"/, "", name); sub(/".*/, "", name)
  apart = name ~ /^mpd/ # on more ranks than layers A and G have an owner each
  eigen = name ~ /^(kaisa|mpd|dp)/; workers = name ~ /comm-opt|mpd/ ? 4 : name ~ /1\/2/ ? 2 : 1
  is("gradients", sum(4 * p * q))
  is("observe", get("sums_bytes") == 0 && name !~ /local|dp/ ? -1 : B * pos * (p * (p + 1) + q * (q + 1)) / gemm / F)
  owners = name ~ /owner/
  is("sums", (owners ? to_owners(get("scatter_bytes")) : sum(get("sums_bytes"))) / F)
  if (get("scatter_bytes") != (owners ? get("sums_bytes") : 0)) { print name ": scatter_bytes is " get("scatter_bytes"); bad = 1 }
  is("solve", (eigen ? 9 : 1) * (p ^ 3 + (apart ? 0 : q ^ 3)) / solve / I)
  is("share", down(workers, get("share_bytes"), apart ? 2 : 1) / I)
  is("apply", (eigen ? 4 : 2) * p * q * (p + q) / gemm)
  is("deliver", down(W / workers, get("deliver_bytes"), 1))
  is("weights", down(W, get("weights_bytes"), 1))
  is("compute_ms", 3 * 2 * B * pos * p * q / gemm)
  added = (get("observe") + get("sums") + get("solve") + get("share") + get("apply") + get("deliver") + get("weights") + get("small") + get("shards")) / 1000
  is("added_ms", added)
  is("step_ms", added + (get("compute_ms") + get("gradients")) / 1000)
}
END { exit bad || NR < 9 }
AWK
awk -f "$scratch/again.awk" "$scratch/fc" || fail "times of one layer"
# With a small latency a sum uses recursive halving: 48 bytes of gradients, 2 * 2 us + 2 * 3/4 * 48 ms.
"$natgrad" plan --json --model "$scratch/fc.json" --ranks 4 --bandwidth 1kB/s --latency 1 >"$scratch/halves" || fail "plan of halves"
gradients=$(of "$scratch/halves" "natgrad, comm-opt" gradients)
[[ $gradients == 72.004* ]] || fail "gradients by halves: $gradients ms, expected 72.004"

# The layer sharded by outputs in groups of two: 48 bytes of gradients, a check of 160 bytes and 10 rows of 3 numbers,
# each to two ranks; half of the products; gradients are summed over two ranks.
echo '[{"name": "fc", "kind": "linear", "in": 4, "out": 3, "positions": 5, "split": "output"}]' >"$scratch/cut.json"
slow=(--batch 2 --stat-period 2 --solve-period 5 --gemm 1k --solve 10 --bandwidth 1kB/s --latency 1e6)
"$natgrad" plan --json --model "$scratch/cut.json" --ranks 4 --model-parallel 2 "${slow[@]}" >"$scratch/cut" || fail "plan of a cut layer"
for row in "shards_bytes 328" "model_parallel 2" "shards 2134" "gradients 1024" "observe 80" "compute_ms 360"; do
  is=$(of "$scratch/cut" "natgrad, comm-opt" "${row% *}")
  awk -v is="$is" -v want="${row#* }" 'BEGIN { exit !(is - want < 1e-3 && want - is < 1e-3) }' || fail "cut: ${row% *} is $is, expected ${row#* }"
done
grep -Eq 'local|owners"' "$scratch/cut" && fail "rows that do not go with parts"
"$natgrad" plan --json --model "$scratch/cut.json" --ranks 4 "${slow[@]}" | grep -v '^$' >"$scratch/whole" || fail "plan of a layer with a split"
cmp -s <(sed 's/cut.json/fc.json/' "$scratch/whole") "$scratch/fc" || fail "a split without --model-parallel changes the plan"
expect 0 '*gpt-24 on 8 ranks in model groups of 8, *shards *natgrad, mem-opt*' "$natgrad" plan --model gpt-24 --ranks 8 --model-parallel 8
expect 2 '*plan: --ranks has 6, expected multiples of --model-parallel 4*' "$natgrad" plan --model gpt-24 --ranks 4,6 --model-parallel 4
expect 2 "*plan: --model-parallel: no layer of 'resnet50' has a split*" "$natgrad" plan --ranks 4 --model-parallel 2
expect 2 "*layer 'fc': members is 4, expected 1 to its 3 outputs*" "$natgrad" plan --model "$scratch/cut.json" --ranks 4 --model-parallel 4
for bad in '"split": "rows"' '"split": 1'; do
  sed "s/\"split\": \"output\"/$bad/" "$scratch/cut.json" >"$scratch/bad.json"
  expect 2 '*layer 0: split is not "output" or "input"*' "$natgrad" plan --model "$scratch/bad.json"
done
echo '[{"name": "c", "kind": "conv2d", "in": 4, "out": 3, "kernel": 1, "image": 5, "split": "output"}]' >"$scratch/bad.json"
expect 2 "*layer 0: conv2d has no key 'split'*" "$natgrad" plan --model "$scratch/bad.json"

# An embedding of 9 tokens and 3 features: 9 numbers of A and a triangle of G; none if the method has no block for it.
echo '[{"name": "words", "kind": "embedding", "in": 9, "out": 3, "positions": 5}, {"name": "fc", "kind": "linear", "in": 4, "out": 3}]' >"$scratch/words.json"
"$natgrad" plan --json --model "$scratch/words.json" --ranks 2 --batch 2 --gemm 1k --stat-period 2 >"$scratch/words" || fail "plan of an embedding"
between "embedding: sums" "$(of "$scratch/words" "natgrad, comm-opt" sums_bytes)" $((4 * (9 + 6 + 10 + 6))) $((4 * (9 + 6 + 10 + 6) + 3 * 64))
between "embedding, a tensor: sums" "$(of "$scratch/words" "kaisa, comm-opt" sums_bytes)" $((4 * (10 + 6))) $((4 * (10 + 6) + 64))
# 10 rows of 3 * 4 products and 2 of 20 and 12, every other step; two of them without the embedding's
for row in "natgrad, comm-opt;92" "kaisa, comm-opt;32"; do
  is=$(of "$scratch/words" "${row%;*}" observe)
  awk -v is="$is" -v want="${row#*;}" 'BEGIN { exit !(is - want < 1e-3 && want - is < 1e-3) }' || fail "embedding: ${row%;*}: observe is $is, expected ${row#*;}"
done

# A layer with a method of its own: Eva's vectors instead of two triangles.
echo '[{"name": "a", "kind": "linear", "in": 100, "out": 50}, {"name": "b", "kind": "linear", "in": 100, "out": 50}]' >"$scratch/two.json"
for how in "; 50600 50728" "b: method=eva-natgrad; 25900 26156"; do
  "$natgrad" plan --json --model "$scratch/two.json" --ranks 2 --per-layer "${how%;*}" >"$scratch/own" || fail "plan with --per-layer"
  read -r low high <<<"${how#*; }"
  between "sums with '${how%;*}'" "$(of "$scratch/own" "natgrad, comm-opt" sums_bytes)" "$low" "$high"
done
expect 2 "*per_layer: 'c' applies to no layer*" "$natgrad" plan --model "$scratch/two.json" --per-layer 'c: method=eva'
expect 2 '*per_layer*no_such*' "$natgrad" plan --model "$scratch/two.json" --per-layer 'a: no_such=1'

# Norms and grouped convolutions of a file: triangles of 2 * 9 + 1 and 3 for each group, and the numbers of two layers;
# a norm before a sharded layer does not change the shards.
echo '[{"name": "bn", "kind": "norm", "in": 12}, {"name": "c", "kind": "conv2d", "in": 8, "out": 12, "kernel": 3, "image": 9,
  "groups": 4, "dilation": 2, "bias": true}]' >"$scratch/groups.json"
"$natgrad" plan --json --model "$scratch/groups.json" --ranks 2 >"$scratch/groups" || fail "plan of groups and a norm"
between "groups: sums" "$(of "$scratch/groups" "kaisa, comm-opt" sums_bytes)" $((4 * 4 * (190 + 6))) $((4 * 4 * (190 + 6) + 64 * 8))
between "groups and a norm: sums" "$(of "$scratch/groups" "natgrad, comm-opt" sums_bytes)" $((4 * (4 * (190 + 6) + 36))) \
  $((4 * (4 * (190 + 6) + 36) + 64 * 9))
between "groups: weights" "$(of "$scratch/groups" "spngd, weights by owners" weights_bytes)" $((4 * (12 * 19 + 24))) $((4 * (12 * 19 + 24)))
# 25 positions of 32 samples, 19 x 3 products in each of 4 groups, three times
[[ $(of "$scratch/groups" "natgrad, comm-opt" compute_ms) == 0.00010944 ]] || fail "groups: compute_ms is not 6 * 32 * 25 * 4 * 57 / 1e10"
sed 's/\[/[{"name": "bn", "kind": "norm", "in": 7}, /' "$scratch/cut.json" >"$scratch/behind.json"
"$natgrad" plan --json --model "$scratch/behind.json" --ranks 4 --model-parallel 2 "${slow[@]}" >"$scratch/behind" || fail "plan of a cut layer behind a norm"
for row in "natgrad, comm-opt" "kaisa, comm-opt"; do
  between "$row: cut behind a norm" "$(of "$scratch/behind" "$row" shards_bytes)" 328 328
done
while IFS=';' read -r keys told; do
  echo "[{\"name\": \"x\", \"in\": 8, $keys}]" >"$scratch/bad.json"
  expect 2 "*bad.json: layer 0: $told" "$natgrad" plan --model "$scratch/bad.json"
done <<'BAD'
"kind": "norm", "bias": true;norm has no key 'bias'*
"kind": "embeddings", "out": 3;kind is not "conv2d", "linear", "norm" or "embedding"
"kind": "embedding", "out": 3, "bias": true;embedding has no key 'bias'*
"kind": "embedding";out is not a whole number from 1 to 1048576
"kind": "embedding", "out": 3, "split": "output";embedding has no key 'split'*
"kind": "conv2d", "out": 12, "kernel": 3, "image": 9, "groups": 3;groups does not divide in and out
"kind": "conv2d", "out": 12, "kernel": 3, "image": 4, "dilation": 2;image is smaller than the kernel
"kind": "linear", "out": 12, "groups": 2;linear has no key 'groups'*
BAD

# natgrad costs at most as much as KAISA for every fraction; A and G on different ranks are solved no later; unknown names.
for placement in kaisa balanced; do
  "$natgrad" plan --json --ranks 4,6 --placement $placement >"$scratch/places-$placement" || fail "plan of $placement"
  "$natgrad" plan --json --ranks 4,6 --placement $placement --colocate 0 >"$scratch/apart-$placement" || fail "plan of A and G apart"
done
for m in comm-opt "hybrid-opt 1/2" mem-opt "statistics=owner"; do
  for file in places apart; do
    dear=$(of "$scratch/$file-kaisa" "natgrad, $m" added_ms | tr '\n' ' ') ours=$(of "$scratch/$file-balanced" "natgrad, $m" added_ms | tr '\n' ' ')
    awk -v a="$dear" -v b="$ours" 'BEGIN { n = split(a, x); if (n < 2 || split(b, y) != n) exit 1; for (i = 1; i <= n; i++) if (y[i] > x[i] * 1.01) exit 1 }' ||
      fail "$m: balanced adds $ours ms, kaisa $dear"
  done
done
expect 2 '*placement*best*kaisa*' "$natgrad" plan --placement best
expect 2 '*plan: --method: each strategy has its own method*' "$natgrad" plan --method eva
expect 2 '*colocate*' "$natgrad" plan --colocate 2

# Published numbers of parameters, all of which their owners send: of BERT with its pooler and without heads, and of GPT-2
# medium, whose head has the weights of an embedding.
for row in "bert-base 109482240" "bert-large 335141888" "gpt-24 354823168"; do
  "$natgrad" plan --json --model "${row% *}" --ranks 2 >"$scratch/bert" || fail "plan of $row"
  weights=$(of "$scratch/bert" "spngd, weights by owners" weights_bytes)
  between "$row: weights" "$weights" $((4 * ${row#* })) $((4 * ${row#* }))
done
expect 0 '*gpt-24 on 2 ranks*natgrad, mem-opt*fastest that fits: natgrad*' "$natgrad" plan --model gpt-24 --ranks 2

# The recommendation fits into --memory.
expect 0 '*fastest that fits: natgrad, comm-opt (grad_worker_fraction = 1)*' "$natgrad" plan --ranks 4 --latency 1e5
expect 0 '*fastest that fits: natgrad, *' "$natgrad" plan --ranks 4 --spatial full --memory 900MB --latency 1e5
expect 0 '*no strategy fits into --memory: the smallest needs * MB' "$natgrad" plan --ranks 4 --memory 100MiB
# The output as JSON: rows that fit, and a last object.
"$natgrad" plan --json --ranks 4 --spatial full --memory 900MB --latency 1e5 >"$scratch/fits" || fail "plan --json --memory"
[[ $(of "$scratch/fits" "natgrad, comm-opt" held_most) -gt 900000000 && $(grep -c '"fits":true' "$scratch/fits") -gt 2 ]] ||
  fail "what fits into 900 MB"
[[ $(grep -F '"natgrad, comm-opt"' "$scratch/fits" | grep -c '"fits":false') == 1 ]] || fail "comm-opt fits into 900 MB"
told=$("$natgrad" plan --ranks 4 --spatial full --memory 900MB --latency 1e5 | tail -n 1)
last=$(tail -n 1 "$scratch/fits")
[[ $last == '{"model":"resnet50","ranks":4,"model_parallel":1,"fastest":"natgrad, '*'"within_overhead":'* ]] || fail "the last object: $last"
name=$(sed -E 's/.*"fastest":"([^"]*)".*/\1/' <<<"$last") every=$(sed -E 's/.*"stat_period":([0-9]+),"solve_period":([0-9]+),.*/\1 \2/' <<<"$last")
[[ $told == "fastest that fits: $name (grad_worker_fraction = "*"; stat_period = ${every% *} and solve_period = ${every#* } add "* ||
  ($last == *'"within_overhead":false'* && $told == "fastest that fits: $name ("*"even solve_period = ${every#* } adds more than"*) ]] ||
  fail "as JSON '$last', as text '$told'"
expect 0 '*{"model":"resnet50","ranks":4,"model_parallel":1,"fastest":null,"least_held":*}' "$natgrad" plan --json --ranks 4 --memory 100MiB
expect 0 '*"within_overhead":true}' "$natgrad" plan --json --ranks 1 --overhead 1000
expect 0 '*"within_overhead":false}' "$natgrad" plan --json --ranks 4 --model "$scratch/fc.json" --overhead 1e-5
expect 0 '*stat_period = 1 and solve_period = 1 add*' "$natgrad" plan --ranks 1 --overhead 1000

# Given rates override measured ones; the first line has the origin of each pair of rates.
one=(--model "$scratch/fc.json" --ranks 2)
expect 0 'assumed: products 1e+04 GFLOP/s, *; network, assumed: 12.5 GB/s, 10 us; *' "$natgrad" plan "${one[@]}"
expect 0 'assumed and given: products 5 GFLOP/s, factorisations 500 *; network, given: 2 GB/s, 0 us; *' \
  "$natgrad" plan "${one[@]}" --gemm 5G --bandwidth 2GB/s --latency 0
expect 0 'measured and given: products 5 GFLOP/s, *; network, assumed and given: 12.5 GB/s, 3 us; *' \
  "$natgrad" plan "${one[@]}" --calibrate --gemm 5G --latency 3
# Under a launcher the link is measured, and rank 0 prints (numbers: t_plan_link).
if [[ -e $NG_BUILD_DIR/launch_mpi.so ]] && command -v "${NG_TEST_MPIRUN:-mpirun}" >/dev/null; then
  "$NG_SOURCE_DIR/tests/mpirun.sh" 2 "$natgrad" plan "${one[@]}" --calibrate >"$scratch/two" 2>&1 || fail "plan on 2 ranks: $(cat "$scratch/two")"
  [[ $(grep -c '^measured: .*; network, measured: ' "$scratch/two") == 1 && $(grep -c '^natgrad, mem-opt' "$scratch/two") == 1 ]] ||
    fail "plan on 2 ranks: $(cat "$scratch/two")"
fi

expect 2 '*plan: --ranks: '"'4,x'"', expected up to 32 whole numbers from 1 to 65536*' "$natgrad" plan --ranks 4,x
expect 2 '*--ranks: '"'0'"'*' "$natgrad" plan --ranks 0
expect 2 '*--memory: '"'16 GB'"' is not a size of at least 1, such as 16GB*' "$natgrad" plan --memory '16 GB'
expect 2 '*--gemm: '"'1e-320'"' is not a size of at least 1*' "$natgrad" plan --gemm 1e-320
expect 2 '*--bandwidth: '"'-1'"'*' "$natgrad" plan --bandwidth -1
expect 2 "*unknown model 'bert-tiny'*" "$natgrad" plan --model bert-tiny
expect 2 '*--overhead*' "$natgrad" plan --overhead 0
expect 2 "*plan: unexpected argument 'x'*" "$natgrad" plan x
if [[ -c /dev/full && -w /dev/full ]]; then
  for how in "" --json; do
    text=$("$natgrad" plan --model "$scratch/fc.json" --ranks 2 $how 2>&1 >/dev/full) && fail "plan $how to a full device"
    [[ $text == "natgrad: standard output could not be written" ]] || fail "plan $how to a full device: $text"
  done
fi
finish
