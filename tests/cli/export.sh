#!/usr/bin/env bash
# natgrad export: a small log as CSV; damaged logs.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
export_() { expect "$1" "$2" "$natgrad" export "${@:3}"; }

mkdir run
cat >run/log.jsonl <<'END'
{"schema": 1, "event": "step", "step": 10, "epoch": 1, "lr": 0.1, "train_loss": 2.5, "ms": {"forward": 1.25, "step": 2}}
{"schema": 1, "event": "epoch", "step": 20, "epoch": 1, "lr": 0.1, "train_loss": null, "test_accuracy": 0.5, "seconds": 4, "ms": {"forward": 1}}
{"schema": 1, "event": "step", "step": 30, "epoch": 2, "lr": 0.05, "train_loss": 0.33333333333333331, "ms": {"forward": 1, "solve, \"b\"": 3}}
{"schema": 1, "event": "end", "step": 40, "epoch": 2, "why": "done, \"all\"", "seconds": 10, "ms": {}}
{"schema": 1, "event": "step", "st
END
printf '%s' "$(cat run/log.jsonl)" >run/cut && mv run/cut run/log.jsonl # the last line has no end

cat >expected.csv <<'END'
event,step,epoch,lr,train_loss,ms.forward,ms.step,test_accuracy,seconds,"ms.solve, ""b""",why
step,10,1,0.10000000000000001,2.5,1.25,2,,,,
epoch,20,1,0.10000000000000001,,1,,0.5,4,,
step,30,2,0.050000000000000003,0.33333333333333331,1,,,,3,
end,40,2,,,,,,10,,"done, ""all"""
END
export_ 0 '' run --csv out.csv
diff out.csv expected.csv || fail "CSV differs"
export_ 0 '' run --csv=out.csv # replaces it
mkdir bad && head -1 run/log.jsonl | sed 's/"event": "step"/"event": 3/' >bad/log.jsonl
export_ 2 'natgrad: bad/log.jsonl: line 1: expected an object with "schema": 1, "event" and "step"' bad --csv bad.csv
rm -r bad
[[ $(ls) == $'err\nexpected.csv\nout\nout.csv\nrun' ]] || fail "something was left behind: $(ls)"

# Damaged logs.
bad_log() { # TEXT MESSAGE
  mkdir -p bad
  printf '%s' "$1" >bad/log.jsonl
  export_ 2 "natgrad: bad/log.jsonl: $2" bad --csv bad.csv
  [[ ! -e bad.csv ]] || fail "a damaged log gave a file"
}
bad_log '' 'has no complete line yet'
bad_log '{"schema": 1' 'has no complete line yet'
bad_log $'{"schema": 1, "event": "step", "step": 1}\n{"schema": 1, "ev\n{}\n' 'line 2: expected an object *'
bad_log $'{"schema": 2, "event": "step", "step": 1}\n' 'line 1: expected an object with "schema": 1, *'
bad_log $'[]\n' 'line 1: expected an object *'

export_ 2 'natgrad: export: expected the folder of a run *'
export_ 2 'natgrad: export: expected the folder of a run *' --csv x.csv
export_ 2 'natgrad: export: --csv is missing' run
export_ 2 "natgrad: export: unexpected argument 'bad'" run bad --csv x.csv
export_ 2 'natgrad: export: unknown option --cvs; the nearest is --csv' run --cvs x
export_ 2 'natgrad: export: option --csv needs a value' run --csv
export_ 2 'natgrad: --csv: expected FILE' run --csv ''
export_ 2 'natgrad: nowhere: expected the folder of a run, but there is no log.jsonl in it' nowhere --csv x.csv
export_ 2 'natgrad: /nowhere/x.csv: cannot be written: No such file or directory' run --csv /nowhere/x.csv
if [[ -w /dev/full ]]; then
  mkdir full && ln -s /dev/full full/x.csv.natgrad-part
  export_ 2 'natgrad: full/x.csv.natgrad-part: is a symbolic link, expected a regular file' run --csv full/x.csv
fi

# Export does not follow links, wait for pipes or overwrite the log.
touch real.csv && ln -s real.csv link.csv && mkfifo pipe
export_ 2 'natgrad: link.csv: is a symbolic link, expected a regular file' run --csv link.csv
export_ 2 'natgrad: pipe: is a pipe, expected a regular file' run --csv pipe
export_ 2 'natgrad: bad: is a folder, expected a regular file' run --csv bad
mkdir piped && mkfifo piped/log.jsonl
export_ 2 'natgrad: piped/log.jsonl: not a regular file' piped --csv x.csv
cp run/log.jsonl log.copy
# Export overwrites no file of a run, under any name, and adds no file to a run.
mkdir run/sub
for part in config.json checkpoint-3.safetensors checkpoint-3.natgrad-state; do echo mine >"run/$part"; done
cp -r run run.copy
for part in run/log.jsonl run/config.json run/checkpoint-3.safetensors run/./checkpoint-4.safetensors \
  run/checkpoint-3.natgrad-state; do
  export_ 2 "natgrad: --csv: $part is the name of a file of a run" run --csv "$part"
done
diff -r run run.copy >/dev/null || fail "a part of the run was overwritten"

# "-" is standard output, not a file, in any folder; a damaged log is refused.
export_ 0 "$(<expected.csv)" run --csv -
cmp -s out expected.csv || fail "standard output got something else"
(cd run/sub && "$natgrad" export .. --csv=- >"$scratch/within.csv") && cmp -s within.csv expected.csv || fail "not from within the run"
export_ 2 'natgrad: bad/log.jsonl: line 1: *' bad --csv -
[[ ! -e ./- && ! -e run/sub/- ]] || fail "a file named -"
if [[ -c /dev/full && -w /dev/full ]]; then
  code=0
  "$natgrad" export run --csv - 2>err >/dev/full || code=$?
  [[ $code == 2 && $(<err) == 'natgrad: standard output could not be written' ]] || fail "a full standard output: $code, $(<err)"
fi
finish
