#!/usr/bin/env bash
# Thousands of forged files.  Each recording is replayed, or refused in one line with its name.  Each log of `export`, layer
# list of `plan`, config.json and weights of `prune` is accepted, or refused in one line.  No crash (`make asan` and `make
# torture` check memory accesses), no hang, and at most a few times the memory of the file.
#
#   FORGED_COUNT=300      files made of each recording     FORGED_SEED=1     FORGED_INPUTS=20    files of each other kind
. "$(dirname "$0")/lib.sh"
count=${FORGED_COUNT:-300}
inputs=${FORGED_INPUTS:-20}
seed=${FORGED_SEED:-1}
batch=50
answered=0 refused=0 files=0
mkdir "$scratch/forged"

# run FOLDER: replay all its files in one process; expect one result or line for each file.
run() {
  local got=0 ok lines list=("$scratch/forged"/*)
  timeout $patience "$natgrad" replay "${list[@]}" >"$scratch/out" 2>"$scratch/err" </dev/null || got=$?
  ok=$(grep -cE 'tolerance [^ ]+: (ok|exceeded)$' "$scratch/out")
  lines=$(wc -l <"$scratch/err")
  if ((got > 2 || ok + lines != ${#list[@]})); then
    fail "seed $seed: exit $got, $ok answers and $lines lines for ${#list[@]} files; they are in $PWD/forged-found"
    rm -rf forged-found && cp -r "$scratch/forged" forged-found
    tail -n 40 "$scratch/err"
    finish
  fi
  if grep -nvE '^natgrad: (.*/)?forged-[0-9]+\.safetensors: .' "$scratch/err"; then
    fail "seed $seed: a line that does not name its file"
  fi
  answered=$((answered + ok)) refused=$((refused + lines)) files=$((files + ${#list[@]}))
  rm -rf "$scratch/forged"/*
}

for case in kaisa-eigen-0 ranks2-eigen eva-0 window-mfac-momentum; do
  for ((done_files = 0; done_files < count; done_files += batch)); do
    "$NG_BUILD_DIR/cli_forge" "$golden/$case.safetensors" "$scratch/forged" "$seed" "$batch" || fail "forge"
    run
    seed=$((seed + 1))
  done
done
((answered * 50 > files && refused * 4 > files)) || fail "$answered answered and $refused refused of $files: the forger is too mild or too rough"
echo "forged: recordings = $files answered = $answered refused = $refused"

# ---- export, plan, prune -----------------------------------------------------------------------------
here=$PWD
cd "$scratch" || exit 1
"$natgrad" train --data synthetic:classes=3,features=6,train=64,test=16 --model mlp-8-2 --batch 8 --steps 8 --log-every 1 \
  --quiet --out run || fail "train"
cat >layers.json <<'END'
[{"name": "conv1", "kind": "conv2d", "in": 3, "out": 16, "kernel": 3, "stride": [1, 2], "padding": 1, "image": 32, "groups": 1},
 {"name": "bn1", "kind": "norm", "in": 16}, {"name": "words", "kind": "embedding", "in": 100, "out": 16, "positions": 8},
 {"name": "fc", "kind": "linear", "in": 16, "out": 10, "bias": true, "positions": 4, "split": "output"}]
END
accepted_inputs=''
# try KIND FILE COMMAND...: run COMMAND of the program, which reads FILE, with each forgery of FILE in its place
try() {
  local kind=$1 file=$2 good=good.${2##*.} accepted=0 done_files
  shift 2
  cp "$file" "$good"
  for ((done_files = 0; done_files < inputs; done_files += batch)); do
    rm -rf forged && mkdir forged
    "$NG_BUILD_DIR/cli_forge" "$good" forged "$seed" $((inputs - done_files < batch ? inputs - done_files : batch)) || fail "forge $file"
    if ! OPENBLAS_NUM_THREADS=1 "$NG_BUILD_DIR/cli_try_each" "$file" forged "$patience" "$@" >tried 2>&1 </dev/null; then
      cp "$file" "$here/forged-$kind"
      fail "$kind, seed $seed, $(<tried): $(head -c 2000 err); the file is $here/forged-$kind"
      finish
    fi
    accepted=$((accepted + $(<tried))) seed=$((seed + 1))
  done
  cp "$good" "$file"
  accepted_inputs+=" $kind = $accepted"
}
try export run/log.jsonl export run --csv out.csv
try plan layers.json plan --model layers.json --ranks 1,6
try config run/config.json prune run --score magnitude --sparsity 0.5 --steps 1 --out out.safetensors
try weights "$(newest_checkpoint run)" prune run --score magnitude --sparsity 0.5 --steps 1 --out out.safetensors
echo "forged inputs: of each kind = $inputs accepted:$accepted_inputs"
finish
