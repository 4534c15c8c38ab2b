#!/usr/bin/env bash
# examples/20_three_layers.c states that natgrad needs twelve lines in a training loop.  Every line that uses natgrad.h
# has a number, except for declarations that a program needs anyway (matrices, two handles, errors) and the section on
# saving.  A numbered line is one complete statement.  There are no macros, and at most twelve numbers.
set -euo pipefail
file=$NG_TEST_SOURCE_DIR/examples/20_three_layers.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

count() {
  awk -v most=12 '
    function wrong(why) { printf "20_three_layers.c:%d: %s: %s\n", NR, why, $0; bad = 1 }
    /^\/\* ---- / { saving = /---- saving/ }
    /^#define/ { wrong("a macro") }
    { code = $0; number = 0 }
    match(code, /\/\* [0-9]+ \*\/$/) {
      number = substr(code, RSTART + 3) + 0
      code = substr(code, 1, RSTART - 1)
      if (number != ++lines) wrong("expected number " lines)
      if (code !~ /^ +(must\(|const |ng_)[^;]*; *$/) wrong("not one whole statement")
      if (length($0) > 100) wrong("longer than 100")
    }
    {
      gsub(/\/\*([^*]|\*[^\/])*\*\//, "", code) # comments in one line; longer ones:
      if (inside) { if (!sub(/^.*\*\//, "", code)) next; inside = 0 }
      if (sub(/\/\*.*$/, "", code)) inside = 1
      gsub(/(ng_array|ng_array_matrix|ng_context|ng_precond|ng_param|ng_status|ng_last_error|NG_OK|NG_F32|NG_WEIGHT|NG_BIAS)([^A-Za-z0-9_]|$)/, " ", code)
      if (!number && !saving && code ~ /(^|[^A-Za-z0-9_])(ng|NG)_/) wrong("natgrad without a number")
    }
    END { if (lines < 1 || lines > most) { print lines + 0 " lines, expected 1 to " most; bad = 1 } exit bad }' "$1"
}
count "$file"

# The check finds mistakes.
missed() { echo "twelve_lines: $1"; exit 1; }
# finds MESSAGE SED: the check refuses the example after the change SED with the message.
finds() {
  sed "$2" "$file" >"$work/mutant.c"
  ! cmp -s "$file" "$work/mutant.c" || missed "nothing to change: $2"
  ! count "$work/mutant.c" >"$work/log" || missed "not found: $1"
  grep -q "$1" "$work/log" || { cat "$work/log"; missed "not found: $1"; }
}
finds "natgrad without a number" 's|  save_state(p, kept);|  must(ng_reset_batch(p));\n&|'
finds "natgrad without a number" 's| */\* 12 \*/$||'
finds "expected number 7" 's| */\* 7 \*/$||'
finds "not one whole statement" 's|must(ng_ready(p));|& must(ng_ready(p));|'
finds "not one whole statement" 's|^\( *must(ng_ready(\)\(p)); */\* 5 \*/\)$|\1\n\2|'
finds "a macro" 's|^enum { LAYERS|#define READY(p) must(p)\n&|'
finds "13 lines, expected" 's|^ *ng_context_destroy(&ctx);.*|&\n  must(ng_reset_batch(p)); /* 13 */|'
