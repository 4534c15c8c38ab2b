#!/usr/bin/env bash
# natgrad train on downloaded files: every kind of data set trains; damage gives an error with the file's name, and no
# part of a run remains.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
train() { expect "$1" "$2" "$natgrad" train --model logreg --batch 4 --epochs 1 --quiet --out run "${@:3}"; }
good() { # SPEC
  train 0 '' --data "$1"
  [[ $(grep -c '"event": "end"' run/log.jsonl) == 1 ]] || fail "$1: the log has no end"
  rm -rf run
}
bad() { # SPEC MESSAGE
  train 2 "natgrad: --data: $2" --data "$1"
  [[ ! -e run/log.jsonl ]] || fail "$1 is refused, but left a log"
}

# ---- the files ------------------------------------------------------------------------------------

bytes() { printf '%b' "$(printf '\\x%s' "$@")"; }
# Eight images of 2 x 2, their labels.
images() { bytes 00 00 08 03 00 00 00 08 00 00 00 02 00 00 00 02 && printf 'abcdefghijklmnopqrstuvwxyz012345'; }
labels() { bytes 00 00 08 01 00 00 00 08 00 01 02 03 04 05 06 "${1-07}"; }
mnist() { # FOLDER
  mkdir "$1"
  for split in train t10k; do
    images >"$1/$split-images-idx3-ubyte"
    labels >"$1/$split-labels-idx1-ubyte"
  done
}
# N rows: LABEL bytes, then 3072.
rows() { for _ in 1 2 3 4; do bytes "$@" && head -c 3072 /dev/zero | tr '\0' k; done; }
cifar() { # FOLDER
  mkdir "$1"
  rows 03 >"$1/data_batch_1.bin"
  rows 04 >"$1/data_batch_3.bin" # as many as are there
  rows 09 >"$1/test_batch.bin"
}
npy() { # DESCR SHAPE: the header; values follow from stdin
  local header="{'descr': '$1', 'fortran_order': False, 'shape': $2, }"
  printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header" && cat
}

# ---- valid files ------------------------------------------------------------------------------------

mnist plain
good mnist:plain
mnist zipped
gzip zipped/*
good mnist:zipped
cifar ten
good cifar10:ten
mkdir hundred
rows 00 63 >hundred/train.bin
rows 13 00 >hundred/test.bin
good cifar100:hundred
printf 'abcdefghijklmnopqrstuvwx' | npy '|u1' '(12, 2)' >x.npy
printf '\0\1\0\1\0\1\0\1\0\1\0\1' | npy '|u1' '(12,)' >y.npy
good npy:x.npy,y.npy

printf '\0\1\0\1\0\1\0\1\0\1\0\1' | npy '|u1' '(12, 1)' >column.npy
good npy:x.npy,column.npy

# A resumed run accepts the same samples in another place, and no other samples.
train 0 '' --data mnist:plain
cp -r plain moved
stretched='natgrad: --epochs: another length of the run changes the schedule linear: after step * lr is * instead of 0'
train 0 "$stretched" --data mnist:moved --resume --epochs 2
mv moved gone
train 2 'natgrad: --data: moved: no file *' --resume --epochs 3
mv gone moved
train 0 "$stretched" --data mnist:moved --resume --epochs 3
sed -i 's/abc/abd/' moved/train-images-idx3-ubyte
train 2 'natgrad: --data: mnist:moved has other samples than the run in run began with' --data mnist:moved --resume --epochs 4
train 2 "natgrad: --data: is 'cifar10:ten', but 'mnist:moved' in run/checkpoint-6.safetensors; *" --data cifar10:ten --resume --epochs 4
rm -rf run

# ---- damaged ones ---------------------------------------------------------------------------------

mnist torn
gzip torn/train-images-idx3-ubyte
head -c 30 torn/train-images-idx3-ubyte.gz >short && mv short torn/train-images-idx3-ubyte.gz
bad mnist:torn 'torn/train-images-idx3-ubyte.gz: damaged or cut short (unexpected end of file)'
# A compressed file may expand to exactly the size in its header.
mnist bomb
(images && head -c 300000000 /dev/zero) | gzip >bomb/train-images-idx3-ubyte.gz
rm bomb/train-images-idx3-ubyte
bad mnist:bomb 'bomb/train-images-idx3-ubyte.gz: has more bytes than its header says'
mnist promise
(bytes 00 00 08 03 00 10 00 00 00 00 04 00 00 00 04 00 && head -c 1000 /dev/zero) | gzip >promise/t10k-images-idx3-ubyte.gz
rm promise/t10k-images-idx3-ubyte
bad mnist:promise 'promise/t10k-images-idx3-ubyte.gz: its header has length 1048576 for axis 0, which does not fit its content of at most * bytes'
(images && head -c 5 /dev/zero) | gzip >promise/t10k-images-idx3-ubyte.gz
bad mnist:promise 'promise/t10k-images-idx3-ubyte.gz: has more bytes than its header says'
images | head -c 40 | gzip >promise/t10k-images-idx3-ubyte.gz
bad mnist:promise 'promise/t10k-images-idx3-ubyte.gz: cut short: 8 bytes are missing'
(images | head -c 20 | gzip && images | tail -c +21 | gzip) >promise/t10k-images-idx3-ubyte.gz # two members are one file
good mnist:promise
mnist magic
labels >magic/t10k-images-idx3-ubyte
bad mnist:magic 'magic/t10k-images-idx3-ubyte: begins with 0 0 8 1, expected 0 0 8 3 *'
mnist fewer
bytes 00 00 08 01 00 00 00 01 04 >fewer/train-labels-idx1-ubyte
bad mnist:fewer 'fewer/train-labels-idx1-ubyte: 1 labels for 8 images'
mnist eleven
labels 0a >eleven/t10k-labels-idx1-ubyte
bad mnist:eleven 'eleven/t10k-labels-idx1-ubyte: test sample 7 has the label 10, expected 0 to 9'
mnist folder
rm folder/t10k-images-idx3-ubyte && mkdir folder/t10k-images-idx3-ubyte
bad mnist:folder 'folder/t10k-images-idx3-ubyte: not a regular file'
bad mnist:plain/train-images-idx3-ubyte 'plain/train-images-idx3-ubyte: Not a directory'
bad mnist:ten 'ten: no file train-images-idx3-ubyte *'
cifar cut
head -c 5000 ten/data_batch_1.bin >cut/data_batch_3.bin
bad cifar10:cut 'cut/data_batch_3.bin: 5000 bytes are no whole number of rows of 3073 *'
cifar squeezed
gzip <ten/test_batch.bin >squeezed/test_batch.bin
bad cifar10:squeezed 'squeezed/test_batch.bin: is compressed; expected an uncompressed file (gunzip it)'
cifar pipe
rm pipe/test_batch.bin && mkfifo pipe/test_batch.bin
bad cifar10:pipe 'pipe/test_batch.bin: not a regular file'
cifar label
rows 0a >label/test_batch.bin
bad cifar10:label 'label/test_batch.bin: row 0 has the label 10, expected 0 to 9'
rows 00 64 >hundred/test.bin # the coarse label is good, the fine one is not
bad cifar100:hundred 'hundred/test.bin: row 0 has the label 100, expected 0 to 99'
rm cut/test_batch.bin && rows 03 >cut/data_batch_3.bin
bad cifar10:cut 'cut/test_batch.bin: No such file or directory'
bad cifar100:ten 'ten/train.bin: No such file or directory'
printf '\0\1' | npy '|u1' '(2,)' >two.npy
bad npy:x.npy,two.npy 'two.npy: 2 labels for 12 samples'
head -c 140 x.npy >torn.npy
printf 'abcdefghijklmnopqrstuvwxabcdefghijklmnopqrstuvwx' | npy '<i4' '(12, 1)' >whole.npy
bad npy:whole.npy,y.npy 'whole.npy: features are i4, expected f4, f8 or u1'
printf 'abcdefghijklmnopqrstuvwxabcdefghijklmnopqrstuvwx' | npy '<f4' '(12,)' >real.npy
bad npy:x.npy,real.npy 'real.npy: labels are f4, expected i4, i8 or u1'
bad npy:x.npy,x.npy 'x.npy: 2 axes, expected labels \[n\] or \[n, 1\]'
bad npy:torn.npy,y.npy 'torn.npy: *'
npy '<f8' '(1073741824, 1073741)' </dev/null >huge.npy
bad npy:huge.npy,y.npy 'huge.npy: 0 bytes of data, its shape and dtype need 9223364958748672: truncated'
mkfifo pipe.npy
bad npy:pipe.npy,y.npy 'pipe.npy: not a regular file'
bad npy:x.npy 'npy: expected FEATURES,LABELS or *'
bad npy:x.npy,gone.npy 'gone.npy: *'
# As root, test as the user `nobody` if that user can run the program.
program=$natgrad
if [[ $(id -u) == 0 ]]; then
  natgrad=$scratch/as_nobody
  printf '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups "%s" "$@"\n' "$program" >"$natgrad"
  chmod 755 "$natgrad" "$scratch" plain # whatever the umask is
fi
if "$natgrad" info >/dev/null 2>&1; then
  chmod 000 plain/train-images-idx3-ubyte
  bad mnist:plain 'plain/train-images-idx3-ubyte: Permission denied'
else
  echo 'data.sh: an unreadable file was not tried: nobody cannot run the program'
fi
finish
