#!/usr/bin/env bash
# Closed streams and pipes, full disks, limits, missing and read-only folders: every command prints one line and exits with
# the right code, writes no output into another file, and keeps the previous checkpoint.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
tiny=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp --batch 8 --lr-schedule constant)
"$natgrad" train "${tiny[@]}" --epochs 2 --quiet --out whole || fail "whole"

declare -A command=(
  [info]="info" [options]="info --options" [methods]="info --methods" [models]="train --models" [help]="help train" [version]="--version"
  [train]="train ${tiny[*]} --epochs 2 --out T" [compare]="compare ${tiny[*]} --epochs 1 --methods sgd --seeds 1 --quiet --out C"
  [replay]="replay $golden/kaisa-eigen-0.safetensors" [list]="bench kfac --model lenet --list"
  [bench]="bench kfac --model lenet --batch 2 --repeat 1 --no-floors"
  [export]="export whole --csv x.csv"
  [ranks]="train ${tiny[*]} --epochs 2 --ranks 2 --out T" [plan]="plan --model lenet --ranks 2"
  [prune]="prune whole --score magnitude --sparsity 0.5 --out q.safetensors" [influence]="influence whole --out i.csv"
)
run() { rm -rf T C x.csv i.csv q.safetensors && read -ra words <<<"${command[$1]}"; }

# Descriptor 4 writes to a pipe whose reader is gone before any program starts.
mkfifo unread
exec 3<>unread 4>unread 3<&-
for name in "${!command[@]}"; do
  silent='' # writes nothing to standard output
  [[ $name == export ]] && silent=1
  want=$([[ $silent ]] && echo 0 || echo 2)
  line='natgrad: standard output could not be written'
  # All ranks stop in the same step, one step after one rank got the signal.
  [[ $name == train ]] && line+='; stopped after step 8; continue with natgrad train --resume --out T'
  [[ $name == ranks ]] && line+='; stopped after step [89]; continue with natgrad train --resume --out T'
  told=$([[ $silent ]] || echo "$line")
  # A pipe without a reader, a closed stream, a full device.
  run "$name" && timeout $patience "$natgrad" "${words[@]}" 2>err >&4
  got=$?
  [[ $got == "$want" && $(cat err) == $told ]] || fail "$name to a closed pipe: exit $got: $(cat err)"
  run "$name" && timeout $patience "$natgrad" "${words[@]}" 2>err >&-
  got=$?
  [[ $got == "$want" && $(cat err) == $told ]] || fail "$name without stdout: exit $got: $(cat err)"
  if [[ $name == train ]]; then
    expect 0 '' "$natgrad" train --resume --out T --quiet # what it had is there
    checkpoints_match T whole || fail "closed stdout: other weights"
  fi
  [[ $name != ranks ]] || expect 0 '' "$natgrad" train --resume --out T --ranks 2 --quiet
  if [[ -w /dev/full ]]; then
    run "$name" && timeout $patience "$natgrad" "${words[@]}" 2>err >/dev/full
    got=$?
    [[ $got == "$want" && $(cat err) == $told ]] || fail "$name to a full device: exit $got: $(cat err)"
  fi
  run "$name" && timeout $patience "$natgrad" "${words[@]}" >out 2>&- <&- || fail "$name without stdin and stderr: exit $?"
  run "$name" && timeout $patience "$natgrad" "${words[@]}" >&- 2>&- <&-
  got=$?
  [[ $got == "$want" ]] || fail "$name without any stream: exit $got"
  ! grep -rlE 'natgrad: |^epoch 1/' T C x.csv i.csv p.safetensors q.safetensors 2>/dev/null || fail "$name without any stream: a message is in a file"
  # Messages to closed streams are not written to a file; the second run is refused.
  if [[ $name == train || $name == ranks ]]; then
    cksum T/* >before
    "$natgrad" "${words[@]}" >&- 2>&- <&- && fail "$name: twice into one folder"
    cksum T/* | diff before - || fail "$name without any stream: a file changed"
  fi
done

# A full disk, simulated by a limit of the file size: after an error the run can be resumed.
for size in 1 2 4 40 100 200; do # kilobytes; a checkpoint has 250, config.json and the log 2 to 6
  for name in train ranks compare export prune influence; do
    run "$name"
    [[ $name == train || $name == ranks ]] && words+=(--quiet --log-every 1 --checkpoint-every 4)
    (ulimit -f $size && exec "$natgrad" "${words[@]}" >out 2>err)
    got=$?
    [[ $got == 0 || ($got == 2 && $(wc -l <err) == 1 && $(cat err) == 'natgrad: '*': '*'File too large') ]] ||
      fail "$name, $size kB a file: exit $got: $(cat err)"
    [[ $got == 0 || -z $(ls x.csv* i.csv* p.safetensors* q.safetensors* 2>/dev/null) ]] || fail "$name, $size kB: left $(ls x.csv* i.csv* p.* q.*)"
    [[ ($name != train && $name != ranks) || $(ls T 2>/dev/null | grep -c natgrad-part) == 0 ]] || fail "$size kB: left $(ls T)"
    if [[ $name == train && -e T/config.json ]]; then
      expect 0 '*' "$natgrad" train --resume --out T --quiet
      checkpoints_match T whole || fail "$size kB: other weights"
    fi
  done
done
rm -rf T && cp -a whole T && cksum T/checkpoint-* >before # a checkpoint that cannot be followed by another
(ulimit -f 100 && exec "$natgrad" train --resume --out T --epochs 3 --quiet >out 2>err)
[[ $? == 2 && $(cat err) == 'natgrad: T/checkpoint-24.safetensors: cannot write: File too large' ]] || fail "the next checkpoint: $(cat err)"
expect 0 'T: has all its 16 steps; *' "$natgrad" train --resume --out T --epochs 2
diff before <(cksum T/checkpoint-*) || fail "the checkpoint before is another"
# A real full disk, if a file system can be mounted.
if unshare -m sh -c 'mkdir small && mount -t tmpfs -o size=300k none small' 2>/dev/null; then
  # shellcheck disable=SC2016
  unshare -m bash -c 'mount -t tmpfs -o size=300k none small
    "$0" train "${@:2}" --epochs 2 --quiet --checkpoint-every 2 --out small/T 2>err
    [[ $? == 2 && $(wc -l <err) == 1 && $(cat err) == "natgrad: small/T/"*"No space left on device" ]] || exit 1
    mount -o remount,size=3000k small && "$0" train --resume --quiet --out small/T && "$1" same {small/T,whole}/checkpoint-16.safetensors &&
    mount -o remount,ro small || exit 2
    "$0" train --resume --out small/T --epochs 3 --quiet 2>err
    [[ $? == 2 && $(cat err) == "natgrad: small/T/log.jsonl: cannot be written: Read-only file system" ]]' "$natgrad" "$helper" "${tiny[@]}" ||
    fail "a small disk: $? $(cat err)"
fi

# A read-only folder without the rights of root: each command that writes ends with one line, and no file changes.
program=$natgrad
if [[ $(id -u) == 0 ]]; then
  natgrad=$scratch/as_nobody
  printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$program" >"$natgrad"
  chmod 755 "$natgrad" "$scratch" whole && chmod 644 whole/* # whatever the umask is
fi
if "$natgrad" info >/dev/null 2>&1; then
  run train # deletes what earlier commands wrote
  chmod 555 "$scratch" whole && before=$(ls -R && cksum whole/*)
  for name in train ranks compare export prune influence resume deeper; do
    case $name in
    resume) words=(train --resume --out whole --epochs 3 --quiet) ;;
    deeper) words=(train "${tiny[@]}" --epochs 1 --quiet --out whole/deeper) ;;
    *) read -ra words <<<"${command[$name]}" ;;
    esac
    told=$(timeout $patience "$natgrad" "${words[@]}" </dev/null 2>&1 >/dev/null)
    got=$?
    [[ $got == 2 && $told == 'natgrad: '*'Permission denied'* && $told != *$'\n'* ]] || fail "$name in a read-only folder: exit $got: $told"
  done
  [[ $before == "$(ls -R && cksum whole/*)" ]] || fail "a read-only folder changed"
  chmod 755 "$scratch" whole
else
  echo 'environment.sh: a read-only folder was not tried: nobody cannot run the program'
fi
natgrad=$program

# Missing folders, folders of another user, an empty environment.
mkdir gone
before_gone=$failures
(
  cd gone && rmdir ../gone
  expect 2 'natgrad: here: the folder cannot be created: No such file or directory' "$natgrad" train "${tiny[@]}" --out here
  expect 2 'natgrad: compare-synthetic-mlp: the folder cannot be created: *' "$natgrad" compare "${tiny[@]}" --methods sgd --seeds 1
  expect 2 'natgrad: x.csv: cannot be written: No such file or directory' "$natgrad" export "$scratch/whole" --csv x.csv
  expect 0 '*epoch 1/1 *' "$natgrad" train "${tiny[@]}" --epochs 1
  exit $((failures > before_gone))
) || fail "in a folder that is gone"
expect 0 '*epoch 1/1 *' env -i "$natgrad" train "${tiny[@]}" --epochs 1
expect 0 '*epoch 1/1 *' env HOME=/nowhere TERM=nonsense "$natgrad" train "${tiny[@]}" --epochs 1

# Limits of open files and memory: an error without delay.
for files in 4 5 6 8; do # 0 to 2 and one more is the least with which a shared library can be loaded
  rm -rf T
  (exec >out 2>err && ulimit -n $files && exec "$natgrad" train "${tiny[@]}" --epochs 2 --checkpoint-every 3 --quiet --out T)
  got=$?
  [[ $got == 0 || ($got == 2 && $(wc -l <err) == 1 && $(cat err) == *'Too many open files') || $got == 127 ]] || fail "$files files: exit $got: $(cat err)"
done
sanitized=$(grep -qa -e __asan_init -e __tsan_init "$natgrad" && echo 1) # they take terabytes of addresses
for memory in 100000 150000 200000 300000 400000 800000; do
  for ranks in 1 3; do # each rank that is a thread needs room of its own
    [[ $sanitized ]] && break
    rm -rf T
    (ulimit -v $memory && exec timeout -s KILL $patience "$natgrad" train "${tiny[@]}" --ranks $ranks --epochs 2 --quiet --out T >out 2>err)
    got=$?
    [[ $got == 0 || ($got == 2 && $(wc -l <err) == 1 && $(cat err) == 'natgrad: '*) || $got == 127 ]] || fail "$memory kB, $ranks ranks: exit $got: $(cat err)"
  done
done
finish
