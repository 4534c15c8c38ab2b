#!/usr/bin/env bash
# `make torture`: long tests.  Prints their figures, which docs/reliability.md records; exit code 1 after a failure.
#
#   BUILD=build                  the build folder
#   TORTURE_KILLS=100            number of kills (kill -9) of training runs at random moments
#   TORTURE_STEPS=600            steps of one training run
#   TORTURE_FUZZ_SECONDS=600     seconds of libFuzzer on the reader of the state
#   TORTURE_FORGED=2500          forgeries of each of four recordings, read by a build with sanitizers
#   TORTURE_MIXED=10             rounds of 40 checkpoints with parts of different checkpoints
#   TORTURE_TRIES=10000          tries of each attack with random inputs (the tables of docs/reliability.md)
#   TORTURE_INPUTS=10000         forgeries of each input of export, plan and prune
#   TORTURE_SEED=$RANDOM         seed of the random moments and forgeries
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
kills=${TORTURE_KILLS:-100}
steps=${TORTURE_STEPS:-600}
fuzz_seconds=${TORTURE_FUZZ_SECONDS:-600}
forged=${TORTURE_FORGED:-2500}
mixed=${TORTURE_MIXED:-10}
tries=${TORTURE_TRIES:-10000}
inputs=${TORTURE_INPUTS:-10000}
seed=${TORTURE_SEED:-$RANDOM}
RANDOM=$seed
work=$(mktemp -d)
figures=()
trap 'rm -rf "$work"' EXIT

fail() {
  echo "torture: $*" >&2
  exit 1
}

print_figure() { # print at once, because the next part may take minutes, and again at the end
  echo "torture: $*" >&2
  figures+=("$*")
}

# ---- kills -----------------------------------------------------------------------------------------
# Kill and resume a run until it ends; the result must equal the result of an undisturbed run.
kill_runs() {
  local train=$build/torture_train done_kills=0 rounds=0 saving=0 resumed=0 folder pid ms
  [[ -x $train ]] || fail "$train is not built"
  mkdir "$work/whole"
  "$train" "$work/whole" "$steps" >"$work/log" || fail "the undisturbed run failed"
  while ((done_kills < kills)); do
    folder=$work/round.$rounds
    mkdir "$folder"
    while [[ ! -e $folder/final ]]; do
      "$train" "$folder" "$steps" >>"$work/log" 2>"$work/error" &
      pid=$!
      if ((done_kills < kills)); then
        ms=$((RANDOM % 250 + 5))
        sleep "$(printf '0.%03d' "$ms")"
        if kill -9 "$pid" 2>/dev/null; then
          wait "$pid" 2>/dev/null && continue # the run ended before the kill
          [[ -s $work/error ]] && fail "seed $seed, kill $done_kills: $(cat "$work/error")"
          done_kills=$((done_kills + 1))
          compgen -G "$folder/*.natgrad-part" >/dev/null && saving=$((saving + 1))
          continue
        fi
      fi
      wait "$pid" || fail "seed $seed, after $done_kills kills: $(cat "$work/error")"
    done
    cmp -s "$work/whole/final" "$folder/final" ||
      fail "seed $seed: after $done_kills kills the weights of round $rounds differ"
    rm -rf "$folder"
    rounds=$((rounds + 1))
  done
  resumed=$(grep -c 'resumed = [1-9]' "$work/log" || true)
  print_figure "kills = $done_kills in_the_middle_of_a_save = $saving resumed = $resumed runs_ended_bit_for_bit = $rounds seed = $seed"
}

# ---- mixed checkpoints -----------------------------------------------------------------------------
mix_checkpoints() {
  NG_TEST_SOURCE_DIR=$PWD NG_TEST_BUILD_DIR=$(realpath "$build") NG_TEST_PROGRAM=$(realpath "$build")/natgrad \
    NG_TEST_SEED=$seed NG_TEST_MULT=$mixed tests/cli/mixed.sh >"$work/mixed" 2>&1 || { cat "$work/mixed"; fail "mixed checkpoints"; }
  print_figure "$(grep '^mixed checkpoints:' "$work/mixed")"
}

# ---- random attacks ----------------------------------------------------------------------------------
# attack NAME TRIES PROGRAM...: run a test whose usual number of tries is TRIES so often that it makes $tries tries
attack() {
  local name=$1 usual=$2 began=$SECONDS
  shift 2
  NG_TEST_SOURCE_DIR=$PWD NG_TEST_BUILD_DIR=$(realpath "$build") NG_TEST_PROGRAM=$(realpath "$build")/natgrad NG_TEST_SEED=$seed \
    NG_TEST_MULT=$(awk "BEGIN { print $tries / $usual }") "$@" >"$work/attack" 2>&1 ||
    { tail -n 40 "$work/attack"; fail "$name, seed $seed"; }
  grep -q '^skipped' "$work/attack" && print_figure "attack: $name $(grep '^skipped' "$work/attack")" ||
    print_figure "attack: $name tries = $tries failures = 0 seed = $seed seconds = $((SECONDS - began))"
}
run_attacks() {
  local parts=$build/t_parts
  attack 'oracle: factors, vectors, f16 and bf16, groups, dilation' 700 "$build/t_oracle"
  attack 'oracle: windows, top-k, low rank' 400 "$build/t_window"
  attack 'factor folders' 300 "$build/t_factor_files"
  attack 'resume on other ranks after a kill' 40 "$parts"
  attack 'faults of shards' 60 "$build/t_shards_faults"
  attack 'ranks that disagree' 540 "$build/t_same"
  [[ ! -x $build/t_same_mpi ]] || attack 'ranks that disagree, MPI' 120 tests/mpirun.sh 3 "$build/t_same_mpi"
  [[ ! -x $build/t_mpi_leave_mpi ]] || attack 'ranks that stop, MPI' 60 tests/mpirun.sh 3 "$build/t_mpi_leave_mpi"
  # the ranks make all tries in one call, which must not count as hanging after ten minutes
  attack 'torch.distributed under faults' 40 env NG_TEST_TIMEOUT=86400 tests/python.sh "$(realpath "$build/libnatgrad.so.0")" 2 \
    test_ranks.Ranks.test_random_faults_reach_all_ranks
}

# ---- allocations -----------------------------------------------------------------------------------
fail_allocations() {
  local line
  "$build/t_alloc" >"$work/alloc" 2>&1 || { cat "$work/alloc"; fail "t_alloc failed"; }
  while IFS= read -r line; do print_figure "$line"; done < <(grep '^allocations:' "$work/alloc")
}

# ---- fuzzing ---------------------------------------------------------------------------------------
run_fuzzer() {
  local bin=${FUZZ_BUILD:-build-fuzz}
  command -v clang >/dev/null || scripts/bootstrap.sh --dev
  if [[ -z ${FUZZ_BUILD:-} ]]; then
    cmake --preset fuzz >"$work/cmake" || { cat "$work/cmake"; fail "cmake --preset fuzz failed"; }
    cmake --build "$bin" --target fuzz_state >"$work/ninja" || { cat "$work/ninja"; fail "fuzz_state does not build"; }
  fi
  mkdir -p "$work/corpus"
  # New inputs go to a folder of this run; an input that causes a failure stays in the build folder.
  "$bin/fuzz_state" -max_total_time="$fuzz_seconds" -print_final_stats=1 -dict=fuzz/state.dict \
    -artifact_prefix="$bin/" "$work/corpus" fuzz/corpus/state >"$work/fuzz" 2>&1 ||
    { tail -40 "$work/fuzz"; fail "fuzz_state found something; add its input to fuzz/corpus/state"; }
  print_figure "fuzz: state reader seconds = $fuzz_seconds executions = $(awk '/number_of_executed_units/ {print $2}' "$work/fuzz") coverage = $(sed -nE 's/^#.*DONE +cov: ([0-9]+).*/\1/p' "$work/fuzz") failures = 0"
}

# ---- recordings ----------------------------------------------------------------------------------------------
forge_recordings() {
  local asan=${ASAN_BUILD:-build-asan} line
  if [[ -z ${ASAN_BUILD:-} ]]; then
    cmake --preset asan >"$work/cmake" || { cat "$work/cmake"; fail "cmake --preset asan failed"; }
    cmake --build "$asan" --target natgrad_cli cli_helper cli_forge cli_try_each >"$work/ninja" || { cat "$work/ninja"; fail "the program does not build"; }
  fi
  asan=$(cd "$asan" && pwd)
  (cd "$asan" && NG_TEST_SOURCE_DIR=$OLDPWD NG_TEST_BUILD_DIR=$asan NG_TEST_PROGRAM=$asan/natgrad \
    FORGED_COUNT=$forged FORGED_SEED=$seed FORGED_INPUTS=$inputs ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1 \
    "$OLDPWD/tests/cli/forged.sh" >"$work/forged" 2>&1) || { cat "$work/forged"; fail "a forged recording did harm"; }
  while IFS= read -r line; do print_figure "$line failures = 0 seed = $seed"; done < <(grep '^forged' "$work/forged")
}

kill_runs
mix_checkpoints
run_attacks
forge_recordings
run_fuzzer
fail_allocations
printf '%s\n' "${figures[@]}"
