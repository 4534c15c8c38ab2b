#!/usr/bin/env bash
# All cases of `natgrad bench` on a small list of layers; errors in lists.
. "$(dirname "$0")/lib.sh"
list=$scratch/list.json
cat >"$list" <<'J'
[{"name": "c", "kind": "conv2d", "in": 3, "out": 8, "kernel": 3, "padding": 1, "image": [8, 6]},
 {"name": "d", "kind": "conv2d", "in": 8, "out": 5, "kernel": [1, 3], "stride": [1, 2], "image": 8, "bias": true},
 {"name": "s", "kind": "linear", "in": 10, "out": 7, "positions": 4},
 {"name": "f", "kind": "linear", "in": 20, "out": 10, "bias": true}]
J
# floor_is CASE OPERATIONS BYTES: the lower bound in $scratch/lines equals the bound from the rates in the machine line.
floor_is() {
  awk -F'[,:{}]' -v name="\"$1\"" -v operations="$2" -v bytes="$3" '
    { for (i = 1; i < NF; i++) field[$i] = $(i + 1) }
    NR == 1 { gflops = field["\"sgemm_gflops\""]; gbs = field["\"copy_gbs\""] }
    field["\"case\""] == name {
      want = 1e-6 * ((operations > 0 ? operations / gflops : 0) + (bytes > 0 ? bytes / gbs : 0))
      gap = field["\"floor_ms\""] / want - 1
      found = gap * gap < 1e-8
    }
    END { exit !found }' "$scratch/lines" || fail "$1: not the lower bound of $2 operations and $3 bytes"
}

"$natgrad" bench kfac --model "$list" --batch 4 --repeat 2 --json >"$scratch/lines" || fail "bench --json"
"$helper" json case bench median_ms:n floor_ms:n <"$scratch/lines" || fail "bench --json"
head -1 "$scratch/lines" | "$helper" json machine || fail "bench --json: no line about the machine"
head -1 "$scratch/lines" | grep -q '"processor":.*"threads":.*"blas":.*"kernel":.*"commit":' || fail "machine line"
# lines: 3 parts of each of 4 layers and of their sum; the whole step; the machine
[[ $(wc -l <"$scratch/lines") == 17 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 17"
# a linear layer of orders 21 and 10; a convolution of orders 27 and 8 with 48 positions, whose patches are cut out
floor_is list.json/4/f/statistics $((4 * (21 * 22 + 10 * 11))) 0
floor_is list.json/4/f/apply $((2 * (10 * 21 * 21 + 10 * 10 * 21))) 0
floor_is list.json/4/c/statistics $((4 * 48 * (27 * 28 + 8 * 9))) $((4 * 4 * (3 * 8 * 6 + 48 * 27)))
grep -q '"case":"list.json/4/d/apply"' "$scratch/lines" || fail "no line for layer d"
for options in eigen "cholesky --damping-split full"; do
  # shellcheck disable=SC2086 # several words are meant
  expect 0 "bench kfac: list.json, batch 4, method kaisa, solver ${options%% *}*processor = *work *c/statistics *d/solve *s/apply *f/apply *sum/step*bytes held: *" \
    "$natgrad" bench kfac --model "$list" --batch 4 --repeat 1 --no-floors --method kaisa --solver $options
done

# The trainer's networks.
"$natgrad" bench train --model lenet --batch 4 --repeat 2 --json >"$scratch/lines" || fail "bench train --json"
"$helper" json case bench median_ms:n floor_ms:n <"$scratch/lines" || fail "bench train --json"
# multiplications of LeNet: 24 x 24 of 25 to 20; 8 x 8 of 500 to 50; 800 to 500; 500 to 10; no gradient of the input
forward=$((2 * 4 * (576 * 25 * 20 + 64 * 500 * 50 + 800 * 500 + 500 * 10)))
floor_is forward $forward 0
floor_is "loss and backward" $((2 * forward - 2 * 4 * 576 * 25 * 20)) 0
[[ $(wc -l <"$scratch/lines") == 4 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 4"
expect 0 'bench train: mlp, batch 8, 109386 parameters*forward*loss and backward*both*' \
  "$natgrad" bench train --model mlp --batch 8 --repeat 1 --no-floors
expect 0 '*both*norm blocks*% of forward and backward' "$natgrad" bench train --model resnet20 --batch 2 --repeat 1 --no-floors
expect 2 "*--model: unknown model 'lenett'; the nearest is lenet" "$natgrad" bench train --model lenett
expect 2 '*bench train: --damping: this case takes no option of the library' "$natgrad" bench train --model mlp --damping 1

# Windows: a step with a full window.
"$natgrad" bench window --model "$list" --window 3 --repeat 2 --json >"$scratch/lines" || fail "bench window --json"
"$helper" json case bench median_ms:n floor_ms:n kept_bytes:n <"$scratch/lines" || fail "bench window --json"
for method in mfac efcp ggt sparse-ggt lowrank-mfac; do
  expect 0 "bench window: method $method, store *list.json: 621 parameters, window 3*list.json *bytes: *" \
    "$natgrad" bench window --model "$list" --window 3 --repeat 1 --no-floors --method $method
done
# The title comes first: a window of 1024 takes minutes to fill.
exec 3< <(exec "$natgrad" bench window --no-floors 2>&1)
pid=$!
read -t 60 -r line <&3
kill -0 $pid || fail "bench window: over before its first line"
kill $pid
exec 3<&-
[[ $line == 'bench window: method mfac, store dense, 272474: '*', window 1024' ]] || fail "bench window: first line '$line'"
expect 2 '*bench window: method eva has no option window; expected mfac*' "$natgrad" bench window --method eva

# Eva.
"$natgrad" bench fused-eva --model "$list" --repeat 2 --json >"$scratch/lines" || fail "bench fused-eva --json"
"$helper" json case bench median_ms:n floor_ms:n <"$scratch/lines" || fail "bench fused-eva --json"
# 12 bytes a parameter to precondition, 24 with the update
floor_is list.json/precondition 0 $((12 * 621))
floor_is "list.json/with sgd" 0 $((24 * 621))
[[ $(wc -l <"$scratch/lines") == 3 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 3"
expect 0 '*list.json, 621 parameters in 4 layers*precondition *with sgd *' \
  "$natgrad" bench fused-eva --model "$list" --repeat 1 --no-floors
expect 0 '*50000, 46080 parameters in 1 layers*' "$natgrad" bench fused-eva --model 50000 --repeat 1 --no-floors --method eva-natgrad
expect 2 '*--model: 7 parameters, expected 4608 to 1e9' "$natgrad" bench fused-eva --model 7
expect 2 '*bench fused-eva: method natgrad has no option sides; expected eva or eva-natgrad' "$natgrad" bench fused-eva --model "$list" --method natgrad
expect 2 '*solver = eigen: method eva *' "$natgrad" bench fused-eva --model "$list" --solver eigen

wrong() { # TEXT-OF-THE-FILE GLOB
  echo "$1" >"$list"
  expect 2 "$2" "$natgrad" bench kfac --model "$list"
}
wrong '[' '*list.json: no JSON: line *'
wrong '[]' '*list.json: expected a list of 1 to 4096 layers'
wrong '{}' '*list.json: expected a list of 1 to 4096 layers'
wrong '[3]' '*layer 0: expected an object'
wrong '[{"name": "x", "kind": "linear", "in": 3}]' '*layer 0: out is not a whole number from 1*'
wrong '[{"name": "x", "kind": "linear", "in": 0, "out": 1}]' '*layer 0: in is not a whole number from 1*'
wrong '[{"name": "x", "kind": "dense", "in": 1, "out": 1}]' '*layer 0: kind is not "conv2d", "linear", "norm" or "embedding"'
wrong '[{"kind": "linear", "in": 1, "out": 1}]' '*layer 0: name is not a text*'
wrong '[{"name": "x", "kind": "linear", "in": 1, "out": 1, "baias": true}]' "*layer 0: linear has no key 'baias'; the nearest is bias"
wrong '[{"name": "x", "kind": "linear", "in": 1, "out": 1, "bias": 1}]' '*layer 0: bias is not true or false'
wrong '[{"name": "x", "kind": "conv2d", "in": 1, "out": 1, "kernel": 3}]' '*layer 0: image is not a whole number*'
wrong '[{"name": "x", "kind": "conv2d", "in": 1, "out": 1, "kernel": 3, "image": 2}]' '*layer 0: image is smaller than the kernel'
wrong '[{"name": "x", "kind": "conv2d", "in": 1, "out": 1, "kernel": [3], "image": 2}]' '*layer 0: kernel is not a whole number*'
expect 2 '*none.json: *' "$natgrad" bench kfac --model "$scratch/none.json"
finish
