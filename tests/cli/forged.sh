#!/usr/bin/env bash
# Thousands of forged recordings: each one is replayed, or refused in one line with its name.  No crash (`make asan` and
# `make torture` check memory accesses), no hang, and at most a few times the memory of the file.
#
#   FORGED_COUNT=300      files made of each recording     FORGED_SEED=1
. "$(dirname "$0")/lib.sh"
count=${FORGED_COUNT:-300}
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
finish
