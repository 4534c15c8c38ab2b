# lib.sh: sourced by the scripts of this folder, which print failures only.
#
#   expect CODE GLOB COMMAND...   runs COMMAND; its exit code must be CODE and stdout and stderr
#                                 together must match GLOB.  For code 2, stdout must be empty and
#                                 stderr one line that starts with "natgrad: ".
#   wait_until PID WHAT COMMAND...  waits until COMMAND succeeds; fails with WHAT if process PID ends before, or after
#                                 `patience` seconds, a long time because a machine may be slow and busy.  Repeats
#                                 COMMAND after `nap` seconds, or at once if `nap` is empty
#   newest_checkpoint DIR, checkpoint_step DIR  the newest checkpoint of a run; its step
#   checkpoints_match DIR DIR [HEAD]  the newest checkpoints of two runs have the same tensors, bit for bit (helper.c)
#   finish                        exits 1 if an expectation failed
set -u -o pipefail
export LC_ALL=C
# CTest sets these variables.  Their names are outside NG_..., because a context reports unknown names.
NG_SOURCE_DIR=$NG_TEST_SOURCE_DIR
NG_BUILD_DIR=$NG_TEST_BUILD_DIR
golden=$NG_SOURCE_DIR/tests/golden
natgrad=$NG_TEST_PROGRAM
helper=$NG_BUILD_DIR/cli_helper
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

fail() {
  echo "$(basename "$0"): $*"
  failures=$((failures + 1))
}

expect() {
  local code=$1 glob=$2 got=0
  shift 2
  "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || got=$?
  local text
  text=$(cat "$scratch/out" "$scratch/err")
  if [[ $got != "$code" ]]; then
    fail "exit $got instead of $code: $* :: ${text:0:400}"
  # shellcheck disable=SC2053 # a glob is meant
  elif [[ $text != $glob ]]; then
    fail "output of $* does not match '$glob': ${text:0:400}"
  elif [[ $code == 2 ]]; then
    [[ ! -s $scratch/out ]] || fail "bad input, but stdout is not empty: $*"
    [[ $(wc -l <"$scratch/err") == 1 && $text == "natgrad: "* ]] || fail "not one line: $* :: $text"
  fi
}

patience=${NG_TEST_TIMEOUT:-600} # seconds after which something hangs
nap=0.02
wait_until() {
  local pid=$1 what=$2 end=$((SECONDS + patience)) there=1
  shift 2
  for (( ; ; )); do
    kill -0 "$pid" 2>/dev/null || there='' # before COMMAND has its last chance
    "$@" && return
    [[ $there ]] || { fail "$what: over before"; return 1; }
    ((SECONDS < end)) || { fail "$what: not in $patience s"; return 1; }
    [[ -z $nap ]] || sleep "$nap"
  done
}
has_lines_over() { [[ $(wc -l 2>/dev/null <"$1") -gt $2 ]]; } # FILE N
has_handler() { # PID NUMBER: the program has a handler of this signal; the shell that starts the program has its own
  local caught
  [[ $(cat "/proc/$1/comm" 2>/dev/null) != bash ]] || return 1
  caught=$(sed -nE 's/^SigCgt:\s*([0-9a-f]+)$/\1/p' "/proc/$1/status" 2>/dev/null)
  (((0x${caught:-0} >> ($2 - 1)) & 1))
}

newest_checkpoint() { compgen -G "$1/checkpoint-*.safetensors" | sort -V | tail -n 1; }
checkpoint_step() { newest_checkpoint "$1" | sed -nE 's/.*-([0-9]+)\.safetensors$/\1/p'; }
checkpoints_match() { "$helper" same "$(newest_checkpoint "$1")" "$(newest_checkpoint "$2")" "${@:3}"; }

finish() { exit $((failures > 0)); }
