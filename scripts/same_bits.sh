#!/usr/bin/env bash
# Does the present tree compute, bit for bit, what another commit computed?  For a change that should
# move code and nothing else: `make same-bits REV=HEAD~1`.
#
#   scripts/same_bits.sh REV          builds that commit (release, no tests), or finds it built before
#   scripts/same_bits.sh --base DIR   takes DIR/libnatgrad.so and DIR/natgrad
#
# One program, tests/bits.c on the present header, plays some thousand small trainings on either
# library and prints a hash of each; then both programs replay the recordings of tests/golden.  Tells
# how many cases there are and which differ; 1 if any does.  A case can be looked at by itself:
#   LD_LIBRARY_PATH=build-bits/now build-bits/bits 'natgrad solver=eigen ranks=2'
# What was added or taken away (an option, a method) shows as a case of one side only.
set -euo pipefail
cd "$(dirname "$0")/.."
# BLAS may cut a product differently for another number of threads; ranks are threads already.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 LC_ALL=C
jobs=$(nproc 2>/dev/null || echo 2)
room=$PWD/build-bits
work=$(mktemp -d)
export TMPDIR=$work
tree= # of the other commit, while it is built
finish() {
  if [[ -n $tree ]]; then git worktree remove --force "$tree" >/dev/null 2>&1 || true; fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "same_bits.sh: $*" >&2
  exit 2
}

# build SOURCE FOLDER
build() {
  (cd "$1" && cmake --preset release -B "$2" -DNATGRAD_TESTS=OFF) >"$work/log" 2>&1 &&
    cmake --build "$2" -j "$jobs" --target natgrad natgrad_cli >>"$work/log" 2>&1 || {
    tail -20 "$work/log" >&2
    fail "building $1 failed"
  }
}

case ${1:-} in
--base)
  base=$(cd "${2:?a folder}" && pwd) ;;
'' | -*)
  fail "expected a commit, or --base DIR" ;;
*)
  commit=$(git rev-parse --verify --quiet "$1^{commit}") || fail "there is no commit '$1'"
  base=$room/$commit
  if [[ ! -e $base/done ]]; then
    tree=$work/tree
    git worktree add --quiet --detach "$tree" "$commit"
    build "$tree" "$base"
    git worktree remove --force "$tree"
    tree=
    touch "$base/done"
  fi ;;
esac
[[ -e $base/libnatgrad.so && -x $base/natgrad ]] || fail "$base has no libnatgrad.so and natgrad"

now=$room/now
build "$PWD" "$now"
"${CC:-cc}" -std=c11 -O2 -ffp-contract=off -D_GNU_SOURCE -DNG_EXPERIMENTAL -Iinclude -Itests tests/bits.c tests/bits_case.c \
  tests/bits_play.c -o "$room/bits" -L"$now" -lnatgrad -pthread -lm

# bits FOLDER FILE
bits() {
  LD_LIBRARY_PATH=$1 timeout 900 "$room/bits" >"$2" || fail "bits ended with $? on $1; $(wc -l <"$2") cases were played"
}
bits "$base" "$work/base"
bits "$now" "$work/now"
status=0
awk '
  { hash = $1; sub(/^[^ ]*  /, "") }
  FNR == NR { was[$0] = hash; next }
  { cases++; seen[$0] = 1 }
  !($0 in was) { print "only now: " $0; differ++; next }
  was[$0] != hash { print "differs: " $0; differ++ }
  END {
    for (name in was) if (!(name in seen)) { print "only before: " name; differ++ }
    printf "same_bits: %d cases, %d differ\n", cases, differ
    exit differ > 0 || cases == 0
  }' "$work/base" "$work/now" || status=1

# replay FOLDER FILE: two recordings need a wider tolerance, so it says 1; that, too, stays as it was.
replay() {
  local linalg code
  for linalg in ref cpu; do
    code=0
    LD_LIBRARY_PATH=$1 "$1/natgrad" replay --linalg $linalg tests/golden/*.safetensors >>"$2" 2>&1 || code=$?
    echo "$linalg: $code" >>"$2"
    ((code <= 1)) || fail "$1/natgrad replay ended with $code: $(tail -2 "$2")"
  done
}
replay "$base" "$work/replay.base"
replay "$now" "$work/replay.now"
if diff -u "$work/replay.base" "$work/replay.now"; then
  echo "same_bits: replay of $(ls tests/golden/*.safetensors | wc -l) recordings prints the same"
else
  echo "same_bits: replay of the recordings differs"
  status=1
fi
exit $status
