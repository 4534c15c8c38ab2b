#!/usr/bin/env bash
# Compare the results of this tree with another commit, bit for bit: `make same-bits REV=HEAD~1`.
#
#   scripts/same_bits.sh REV          build that commit (release, no tests), or use its earlier build
#   scripts/same_bits.sh --base DIR   use DIR/libnatgrad.so, DIR/natgrad and, if present, DIR/bits
#
# tests/bits.c runs some thousand small trainings (cases) and prints a hash of each.  Each commit's bits.c is built with its own
# header, so the header may change; if the other commit has no bits.c, this tree's program runs on that commit's library.  This
# tree's program runs the cases that the other printed.  Then both commits replay the recordings of tests/golden.
# Print the number of cases and the differing cases; exit code 1 if any differs.  To run a single case on one commit:
#   build-bits/now/play 'natgrad solver=eigen ranks=2'
#   build-bits/base/play 'natgrad solver=eigen ranks=2'
# Cases that this tree rejects (a removed option or method) are counted separately and listed in build-bits/gone.txt.  A
# change of tests/bits.c may change hashes, too, so change it in a separate commit.
set -euo pipefail
cd "$(dirname "$0")/.."
# One BLAS thread, because the number of threads may change the order of sums; ranks are threads already.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 LC_ALL=C
jobs=$(nproc 2>/dev/null || echo 2)
room=$PWD/build-bits
work=$(mktemp -d)
export TMPDIR=$work
tree= # the worktree of the other commit, while that commit is built
finish() {
  if [[ -n $tree ]]; then git worktree remove --force "$tree" >/dev/null 2>&1 || true; fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "same_bits.sh: $*" >&2
  exit 2
}

# build_player SOURCE FOLDER: build FOLDER/player from tests/bits.c of the tree SOURCE; return 1 if SOURCE has no bits.c.
# Its files are read from add_executable(bits ...) in tests/tests.cmake or CMakeLists.txt.
build_player() {
  local files
  files=$(sed -n 's/^ *add_executable(bits \(.*\)) *$/\1/p' "$1/tests/tests.cmake" "$1/CMakeLists.txt" 2>/dev/null | head -n 1) || true
  [[ -n $files ]] || return 1
  # shellcheck disable=SC2086  # a list of names without blanks
  (cd "$1" && "${CC:-cc}" -std=c11 -O2 -ffp-contract=off -D_GNU_SOURCE -DNG_EXPERIMENTAL -Iinclude -Itests \
    $files -o "$2/player" -L"$2" -lnatgrad -pthread -lm) >"$work/log" 2>&1 || {
    tail -20 "$work/log" >&2
    fail "building tests/bits.c of $1 failed"
  }
}

# build_tree SOURCE FOLDER: build the library and the program of the tree SOURCE in FOLDER.
build_tree() {
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
  if [[ ! -e $base/built ]]; then
    tree=$work/tree
    git worktree add --quiet --detach "$tree" "$commit"
    build_tree "$tree" "$base"
    build_player "$tree" "$base" || echo "same_bits: ${1} has no tests/bits.c; the program of this tree runs on its library"
    git worktree remove --force "$tree"
    tree=
    touch "$base/built"
  fi ;;
esac
[[ -e $base/libnatgrad.so && -x $base/natgrad ]] || fail "$base has no libnatgrad.so and natgrad"

now=$room/now
build_tree "$PWD" "$now"
build_player "$PWD" "$now" || fail "tests/tests.cmake has no line add_executable(bits ...)"

# write_player_script FOLDER SCRIPT: write a SCRIPT that runs the bits program of FOLDER, or else of this tree, with the library of FOLDER.
write_player_script() {
  local program=$now/player
  if [[ -x $1/player ]]; then program=$1/player; elif [[ -x $1/bits ]]; then program=$1/bits; fi
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$1" "$program" >"$2"
  chmod +x "$2"
}
mkdir -p "$room/base"
write_player_script "$base" "$room/base/play"
write_player_script "$now" "$now/play"

# record_hashes FILE COMMAND...: write the hashes that COMMAND prints to FILE.
record_hashes() {
  local file=$1
  shift
  timeout 900 "$@" >"$file" || fail "$1 ended with $?, after $(wc -l <"$file") cases"
}
record_hashes "$work/base" "$room/base/play"
record_hashes "$work/now" "$now/play" --of "$work/base"
status=0
awk -v gone="$room/gone.txt" '
  { hash = $1; sub(/^[^ ]*  /, "") }
  BEGIN { printf "" >gone }
  FNR == NR { was[$0] = hash; next }
  !($0 in was) { next }
  { cases++; seen[$0] = 1 }
  was[$0] != hash { print "differs: " $0; differ++ }
  END {
    for (name in was) if (!(name in seen)) { print name >gone; refused++ }
    printf "same_bits: %d cases, %d differ, %d are rejected now\n", cases, differ, refused
    exit differ > 0 || cases == 0
  }' "$work/base" "$work/now" || status=1

# append_replay FOLDER FILE: append the output of `natgrad replay` to FILE.  Exit code 1 is accepted, because two recordings exceed the
# default tolerance; the code is part of the comparison.
append_replay() {
  local linalg code
  for linalg in ref cpu; do
    code=0
    LD_LIBRARY_PATH=$1 "$1/natgrad" replay --linalg $linalg "${recordings[@]}" >>"$2" 2>&1 || code=$?
    echo "$linalg: $code" >>"$2"
    ((code <= 1)) || fail "$1/natgrad replay ended with $code: $(tail -2 "$2")"
  done
}
# Skip recordings that the other commit cannot read.
recordings=()
for file in tests/golden/*.safetensors; do
  code=0
  LD_LIBRARY_PATH=$base "$base/natgrad" replay --linalg ref "$file" >/dev/null 2>&1 || code=$?
  if ((code <= 1)); then recordings+=("$file"); fi
done
append_replay "$base" "$work/replay.base"
append_replay "$now" "$work/replay.now"
if diff -u "$work/replay.base" "$work/replay.now"; then
  echo "same_bits: replay of ${#recordings[@]} recordings prints the same"
else
  echo "same_bits: replay of the recordings differs"
  status=1
fi
exit $status
