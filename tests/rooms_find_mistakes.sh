#!/usr/bin/env bash
# scripts/rooms.sh accepts a small correct tree, and finds each single include upward, and calls upward without an
# include.  CC: the compiler.
set -euo pipefail
rooms=$(cd "$(dirname "$0")/.." && pwd)/scripts/rooms.sh
compiler=${1:-cc}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

fresh() {
  rm -rf "${tree:?}"/*
  local room
  for room in core linalg comm option stat model family step state api; do
    mkdir -p "$tree/src/$room"
    echo "/* $room */" >"$tree/src/$room/$room.h"
  done
  echo '#include "core/core.h"' >"$tree/src/linalg/ref.c"
  printf '#include "model/model.h"\n#include "simd.h"\n' >"$tree/src/family/kronecker.h"
  printf '#include "family/kronecker.h"\n#include <math.h>\n' >"$tree/src/family/kronecker_solve.c"
  printf '#include "state/state.h"\n#include "io.h"\n' >"$tree/src/state/manifest.c"
  mkdir -p "$tree"/cli/{common,nn,data,train}
  touch "$tree"/cli/plan.h "$tree"/cli/train/run.h
  printf '#include "common/cli.h"\n#include "nn/nn.h"\n#include "run.h"\n#include "json.h"\n' >"$tree/cli/train/loop.c"
}

fresh
if ! "$rooms" "$tree"; then
  echo "a house in order was refused"
  exit 1
fi

missed=0
# plant FILE LINE: add the line; rooms.sh must fail and print the line.
plant() {
  fresh
  printf '%s\n' "$2" >"$tree/$1"
  local out
  if out=$("$rooms" "$tree") || ! grep -qF "$1" <<<"$out"; then
    echo "not found in $1: $2"
    missed=1
  fi
}
plant src/core/a.c '#include "linalg/linalg.h"'
plant src/linalg/a.c '#include "comm/comm.h"'
plant src/option/a.c '#include "family/family.h"'
plant src/stat/stat.h '#include "model/model.h"'
plant src/model/a.c '#include "family/family.h"'
plant src/family/rankone_a.c '#include "step/step.h"'
plant src/family/attic.c '#include "family/family.h"'
plant src/step/a.c '#include "api/api.h"'
plant src/step/b.c '#include "family/kronecker.h"'
plant src/family/rankone.c '#include "family/kronecker.h"'
plant src/model/b.c '#include "stat/read.h"'
plant src/model/c.c '#include "core.h"'
plant src/step/c.c '#include "io.h"'
plant src/step/d.c 'NG_CLONES static void f(void);'
plant src/stat/a.c '  ng_parallel(ctx, n, task, arg);'
plant src/family/norm_a.c '  ng_queue_run(q, n, task, arg);'
plant src/state/save.c 'int no_loop;'
plant cli/train/a.c '#include "plan.h"'
plant cli/nn/a.c '#include "train/run.h"'
plant cli/data/a.c '#include "nn/nn.h"'
plant cli/common/a.c '#include "data/data.h"'
fresh
mkdir "$tree/src/attic"
if "$rooms" "$tree" >/dev/null; then
  echo "a room that nobody knows was let through"
  missed=1
fi
fresh
touch "$tree/src/step/ref.c"
if "$rooms" "$tree" >/dev/null; then
  echo "two files of one name were let through"
  missed=1
fi

# archive LOW HIGH: core/low.c.o calls a function of step/high.c.o, or the reverse
archive() {
  fresh
  echo "int ng_$2(void); int ng_$1(void) { return ng_$2(); }" >"$tree/src/$3/low.c"
  echo "int ng_$2(void) { return 1; }" >"$tree/src/$4/high.c"
  (cd "$tree" && for f in "$3/low" "$4/high"; do
    "$compiler" -c "src/$f.c" -o "$(basename "$f").c.o"
  done && ar rc lib.a low.c.o high.c.o)
}
archive one two core step
if out=$("$rooms" "$tree" "$tree/lib.a") || ! grep -q 'src/core/low.c uses ng_two of step/' <<<"$out"; then
  echo "a call upward was let through"
  missed=1
fi
archive one two step core
if ! "$rooms" "$tree" "$tree/lib.a"; then
  echo "a call downward was refused"
  missed=1
fi
exit $missed
