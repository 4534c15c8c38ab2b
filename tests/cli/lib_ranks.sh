# lib_ranks.sh: for tests on several ranks.  Ranks are threads, or processes under mpirun if the first argument of the
# script is their number (`processes`).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export OPENBLAS_NUM_THREADS=1 NG_THREADS=1
processes=${1:-}
if [[ -n $processes ]]; then
  [[ -e $NG_BUILD_DIR/launch_mpi.so ]] || { echo "skipped: built without MPI"; exit 77; }
  command -v "${NG_TEST_MPIRUN:-mpirun}" >/dev/null || { echo "skipped: no mpirun (apt-get install openmpi-bin)"; exit 77; }
fi

# train_on RANKS OPTIONS...: run natgrad train on RANKS ranks
train_on() {
  local n=$1
  shift
  if [[ $n == 1 ]]; then
    "$natgrad" train "$@"
  elif [[ -z $processes ]]; then
    "$natgrad" train --ranks "$n" "$@"
  else
    "$NG_SOURCE_DIR/tests/mpirun.sh" "$n" "$natgrad" train "$@"
  fi
}

losses() { grep '"event": "step"' "$1/log.jsonl" | sed -nE 's/.*"train_loss": ([^,]*),.*/\1/p'; }

# must_be_near NAME A B LEAST: the losses of all steps, at least LEAST steps, differ by at most 1e-4.
must_be_near() {
  paste <(losses "$2") <(losses "$3") >"$scratch/pairs"
  awk -v most=1e-4 -v least="$4" '{ d = $1 - $2; if (d < 0) d = -d; if (!(d <= most)) { print "step " NR ": " $1 " and " $2; exit 1 } }
    END { if (NR < least) exit 1 }' "$scratch/pairs" >"$scratch/why" || fail "$1: $(cat "$scratch/why")"
}

# rank_process DIR R: the process of rank R of the run in DIR, under a launcher.  grep reads the file itself: with a pipe it
# could end before the writer, which would fail.
rank_process() {
  local child
  for child in $(pgrep -f -- "train .*--out $1"); do
    grep -qzE "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2\$" "/proc/$child/environ" 2>/dev/null && echo "$child" && return
  done
}

# run_is_gone DIR: no process of the run in DIR exists; a launcher may end before its processes
run_is_gone() { ! pgrep -f -- "train .*--out $1" >/dev/null; }

# check_files DIR STEP PARTS: the run has exactly the files of this checkpoint, with the state in PARTS parts (1: in
# the checkpoint)
check_files() {
  local want="checkpoint-$2.safetensors" id r
  if (($3 > 1)); then
    id=$(tr "\0" "\n" <"$1/checkpoint-$2.safetensors" | sed -nE 's/.*"state_id":"([0-9a-f]{8})".*/\1/p' | head -n 1)
    want+=$'\n'checkpoint-$2.natgrad-state
    for ((r = 1; r < $3; r++)); do
      want+=$'\n'checkpoint-$2.natgrad-state.$id-${r}of$3
    done
  fi
  [[ $(cd "$1" && printf '%s\n' checkpoint* | sort) == $(sort <<<"$want") ]] || fail "$1: $(ls "$1"), expected $want"
}
