#!/usr/bin/env bash
# docs/options.md, from the option table of the program:
#
#   scripts/options_doc.sh build/natgrad >docs/options.md
#
# tests/cli/options_in_sync.sh compares the result with the page in the tree.
set -euo pipefail
program=${1:?usage: options_doc.sh PROGRAM}
cat <<'END'
# Options

Set options in a line (`"method=eva damping=0.01"`), with `ng_options_set`, as `--damping 0.01` on the command line, as
`NG_DAMPING=0.01` in the environment, or as keyword arguments in Python. The defaults are those of method `natgrad`;
`natgrad info --methods` lists the values of the other methods. Notation: D gradient, PD preconditioned gradient, A and G
Kronecker factors, W ranks, lr learning rate.

*per layer*: single layers may have their own value (`per_layer`, `ng_layer.options`). *live*: `ng_set` may change the value
between steps. *for methods with ...*: other methods refuse the option.
END
"$program" info --options --long | awk '
  function plain(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/\*/, "\\*", s); return s }
  /^\[/ { s = substr($0, 2, length($0) - 2); printf "\n## %s\n", toupper(substr(s, 1, 1)) substr(s, 2); next }
  /^[^ ]/ { i = index($0, ":"); printf "\n### %s\n\n*%s*\n", substr($0, 1, i - 1), plain(substr($0, i + 2)); list = 0; begin = 1; next }
  { s = substr($0, 3); bullet = s ~ /^- /; more = s ~ /^  /
    if (begin || bullet != list && !(list && more)) print ""
    begin = 0; if (!more) list = bullet
    print plain(s) }'
