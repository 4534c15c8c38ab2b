#!/usr/bin/env bash
# scripts/house.sh accepts a clean tree, and finds each single mistake.
set -euo pipefail
house=$(cd "$(dirname "$0")/.." && pwd)/scripts/house.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

fresh() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/src/linalg" "$tree/src/core" "$tree/io" "$tree/cli"
  # Correct code that resembles mistakes: members, longer names, comments, texts.
  cat >"$tree/src/clean.c" <<'C'
/* exit( and malloc( in a comment, printf("x") too. */
const char *text = "do not call abort() or rand()";
void f(struct c *ctx) { ctx->config.free(ctx, 0, 1); ctx->t.abort(0); ng_free(ctx, 0, 1); }
int g(char *s) { return snprintf(s, 9, "%d", (int)kind); } // TODO-free
C
  sed -i 's, // TODO-free,,' "$tree/src/clean.c"
  echo 'void *standard(void) { return malloc(9); }' >"$tree/src/core/memory.c"
  echo 'void *reader(void) { return malloc(9); }' >"$tree/io/clean.c"
  echo 'int main(void) { printf("fine\n"); exit(0); }' >"$tree/cli/main.c"
}

fresh
if ! "$house" "$tree"; then
  echo "a clean tree was refused"
  exit 1
fi

missed=0
# plant FILE LINE: add the line; house.sh must fail and print the line.
plant() {
  fresh
  printf '%s\n' "$2" >"$tree/$1"
  local out
  if out=$("$house" "$tree") || ! grep -qF "$1:" <<<"$out"; then
    echo "not found in $1: $2"
    missed=1
  fi
}
plant src/a.c 'void f(void) { p = malloc(3); }'
plant src/linalg/a.c 'void f(void) { free(p); }'
plant src/a.c 'char *f(void) { return strdup(s); }'
plant src/a.c 'void f(void) { exit(1); }'
plant src/a.c 'void f(void) { abort (); }'
plant io/a.c 'void f(void) { printf("x\n"); }'
plant src/a.c 'void f(void) { fprintf(stderr, "x"); }'
plant src/a.c 'int f(void) { return rand(); }'
plant cli/a.c 'int f(void) { srand(1); }'
plant cli/a.c 'int f(char *s) { return atoi(s); }'
plant cli/a.c 'void f(void) { printf("%d\n", (int)bytes); }'
plant src/a.c 'void f(char *s) { snprintf(s, 9, "%d", (int)sizeof x); }'
plant io/a.c '/* TODO: the rest */'
plant src/a.c 'void f(void) { assert(1); }'
plant cli/a.c '#include "core/core.h"'
plant src/a.c 'void f(char *s) { /* copy */ strcpy(s, t); }'
plant src/linalg/a.c $'#define sgemm_ NG_BLAS_NAME(sgemm_)\nextern void sgemm_(int);\nextern void dpotrf_(int);'
fresh
seq 551 | sed 's,.*,/* & */,' >"$tree/io/long.c"
if "$house" "$tree" >/dev/null; then
  echo "a file of 551 lines was let through"
  missed=1
fi
exit $missed
