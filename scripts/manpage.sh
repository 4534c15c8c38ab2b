#!/usr/bin/env bash
# Generate the man page from docs/natgrad.1.in and the output of the program:
#
#   scripts/manpage.sh build/natgrad >docs/natgrad.1
#
# Options, methods and commands come from the program's lists.  tests/cli/options_in_sync.sh compares the result with the
# page in the tree.
set -euo pipefail
export LC_ALL=C
program=${1:?usage: manpage.sh PROGRAM}
template=$(dirname "$0")/../docs/natgrad.1.in

# Escape characters with a meaning in roff: backslashes, hyphens, a leading dot or quote.
escape_roff() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"; }

# Groups as subsections, options with all lines of their help.
print_options() {
  "$program" info --options --long | awk '
    function roff(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); sub(/^[.\047]/, "\\\\\\&&", s); return s }
    /^\[/ { printf ".SS %s\n", toupper(substr($0, 2, 1)) substr($0, 3, length($0) - 3); next }
    /^[^ ]/ { i = index($0, ":"); name = substr($0, 1, i - 1); gsub(/_/, "-", name)
              s = roff(substr($0, i + 2)); gsub(/"/, "\\(dq", s)
              printf ".TP\n.B %s\n.RI ( \"%s\" )\n", roff("--" name), s; next }
    { s = substr($0, 3); if (s !~ /^  /) print ".br"; sub(/^  /, "", s); print roff(s) }'
}

print_methods() {
  # "NAME (family)", then indented help and paper, then "  option = value" lines
  "$program" info --methods | awk '
    /^[^ ]/ { name = $1; n = 0; next }
    / = /   { next }
    NF      { sub(/^ +/, ""); n++
              if (n == 1) printf ".TP\n.B %s\n%s\n", name, $0
              else printf ".br\n%s\n", $0 }' | sed -e '/^\./!s/\\/\\e/g' -e 's/\([^.]\)-/\1\\-/g'
}

# Lines "NAME meaning" of the environment variables; a variable NG_OPTION of an option is left out.
print_environment() {
  local options name meaning
  options=" $("$program" info --options | awk '{ print "NG_" toupper($1) }' | tr '\n' ' ')"
  "$program" info --environment | while read -r name meaning; do
    [[ $options == *" $name "* ]] || printf '.TP\n.B %s\n%s\n' "$name" "$(escape_roff <<<"$meaning")"
  done
}

# The text of `natgrad help COMMAND`, with its line breaks.
print_commands() {
  local command
  for command in $("$program" help | awk '/^  [a-z]+  / { print $1 }'); do
    printf '.SS %s\n.nf\n' "$command"
    "$program" help "$command" | escape_roff
    printf '.fi\n'
  done
}

version=$("$program" --version | awk '{ print $1, $2 }')
while IFS= read -r line; do
  case $line in
    '@OPTIONS@') print_options ;;
    '@METHODS@') print_methods ;;
    '@COMMANDS@') print_commands ;;
    '@ENVIRONMENT@') print_environment ;;
    '.\" Source of'*) echo '.\" Made by scripts/manpage.sh from docs/natgrad.1.in; do not edit.' ;;
    *) printf '%s\n' "${line//@VERSION@/$version}" ;;
  esac
done <"$template"
