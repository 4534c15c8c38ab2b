#!/usr/bin/env bash
# Valid and invalid commands, options and help.
. "$(dirname "$0")/lib.sh"
file=$golden/kaisa-eigen-0.safetensors

expect 2 '*no command given*' "$natgrad"
expect 2 "*unknown command 'reply'; the nearest is replay*" "$natgrad" reply
expect 2 "*unknown command 'xylophone'; *--help*" "$natgrad" xylophone
expect 2 "*unknown option '--verison'; the nearest is --version*" "$natgrad" --verison
expect 2 "*unknown command 'reply'; the nearest is replay*" "$natgrad" help reply
expect 2 '*help: unexpected argument '"'bench'"'*' "$natgrad" help replay bench

expect 0 'natgrad [0-9]*.[0-9]*.[0-9]* (*)' "$natgrad" --version
expect 0 '*natgrad COMMAND*info*replay*bench*prune*influence*Exit code*' "$natgrad" --help
for command in info train compare export replay bench plan prune influence help; do
  expect 0 "natgrad $command *" "$natgrad" help "$command"
done
expect 0 'natgrad replay *--tolerance*All options of the library*' "$natgrad" replay --help
expect 0 'natgrad bench *' "$natgrad" bench kfac --batch 3 --help

# Options that are misspelt, unknown, without a value or with too many values, of the command and of the library; '-'
# and '_' in a name are equal.
expect 2 '*replay: unknown option --tolerence; the nearest is --tolerance' "$natgrad" replay --tolerence 1 "$file"
expect 2 '*replay: unknown option --dampnig; the nearest is --damping' "$natgrad" replay --dampnig=1 "$file"
expect 2 '*replay: unknown option --stat_decya; the nearest is --stat-decay' "$natgrad" replay --stat_decya 1 "$file"
expect 2 '*replay: unknown option --qqqqqqqq; *natgrad help replay*' "$natgrad" replay --qqqqqqqq "$file"
expect 2 '*replay: unknown option -x; *' "$natgrad" replay -x "$file"
expect 2 '*--out: expected DIR' "$natgrad" train --out ""
expect 2 '*replay: option --tolerance needs a value' "$natgrad" replay "$file" --tolerance
expect 2 '*bench: option --json takes no value' "$natgrad" bench kfac --json=yes
expect 2 'natgrad: replay: unknown option --dampi; the nearest is --damping' "$natgrad" replay "$file" --dampi 1
expect 2 '*--tolerance: '"'small'"' is no number*' "$natgrad" replay "$file" --tolerance small
expect 2 '*--tolerance: '"'nan'"' is no number*' "$natgrad" replay "$file" --tolerance nan
expect 2 '*--tolerance: '"'-1'"' is no number*' "$natgrad" replay "$file" --tolerance -1
expect 2 '*damping*' "$natgrad" replay "$file" --damping 0
expect 2 '*stat_decay*' "$natgrad" replay "$file" --stat-decay 1.5
expect 2 '*solver*cholesky*' "$natgrad" replay "$file" --solver choleski
expect 2 '*--method: *kasia*kaisa*' "$natgrad" replay "$file" --method kasia
expect 2 '*replay: no file given*' "$natgrad" replay
expect 2 '*linalg*' "$natgrad" replay "$file" --linalg cup

expect 2 "*info: unexpected argument 'now'" "$natgrad" info now
expect 2 '*info: expected at most one of *' "$natgrad" info --options --methods
expect 2 "*info: unknown method 'dpkfac'; the nearest is dp-kfac" "$natgrad" info --published dpkfac
expect 2 '*bench: the case is missing, expected kfac, train, fused-eva, state or window' "$natgrad" bench
expect 2 "*bench: unknown case 'kfca'; the nearest is kfac" "$natgrad" bench kfca
expect 2 "*--model: unknown model 'resnet81'; the nearest is resnet18" "$natgrad" bench kfac --model resnet81
expect 2 '*--batch: '"'0'"' is no whole number from 1*' "$natgrad" bench kfac --model resnet18 --batch 0
expect 2 '*--batch: '"'8x'"' is no whole number*' "$natgrad" bench kfac --model resnet18 --batch 8x

expect 0 '*version = *commit = *compiler = *blas = *kernel = *processor = *threads = *linalg ref = built in*transport threads = built in*' "$natgrad" info
expect 0 '*damping real, default 0.1, above 0..*' "$natgrad" info --options
expect 0 '*stat_decay real, *0..1*' "$natgrad" info --options
expect 0 'natgrad *1503.05671*damping = *kaisa *2107.01739*stat_scale = kaisa*mpd-kfac*dp-kfac*' "$natgrad" info --methods
expect 0 '*factor_decay *stat_decay *weight of the new*' "$natgrad" info --published dp-kfac
expect 0 '*no published names*' "$natgrad" info --published natgrad

# Control characters in a text that a message quotes are replaced: a terminal would run them.
esc=$'\e[31m\a\x7fx'
while IFS='|' read -r name arguments; do
  eval "\"$natgrad\" $arguments" >"$scratch/out" 2>"$scratch/err" </dev/null && fail "$name: accepted"
  LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]' "$scratch/out" "$scratch/err" && fail "$name: control characters in a message"
  grep -q '[?][[]31m' "$scratch/err" || fail "$name: the message does not quote the text: $(cat "$scratch/err")"
done <<'ROWS'
command|"$esc"
option of the program|"--$esc"
option of a command|replay "--$esc" "$file"
number|replay "$file" --tolerance "$esc"
option of the library|replay "$file" --damping "$esc"
list|compare --methods "$esc"
method|info --published "$esc"
argument|info "$esc"
case|bench "$esc"
model|bench kfac --model "$esc"
layers|plan --model "$scratch/$esc"
recording|replay "$scratch/$esc"
data|train --data "$esc" --model mlp
configuration|train --config "$scratch/$esc"
log|export "$scratch/$esc" --csv -
weights|prune "$scratch/$esc" --sparsity 0.5 --out "$scratch/out.npy"
ROWS

# A full disk is an error.
if [[ -w /dev/full ]]; then
  "$natgrad" info --options >/dev/full 2>"$scratch/err"
  [[ $? == 2 ]] || fail "writing to a full disk exits 0"
fi
finish
