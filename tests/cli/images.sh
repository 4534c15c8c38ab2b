#!/usr/bin/env bash
# natgrad train on folders of JPEG and PNG: a published configuration on generated files, one damaged; equal bits for any
# number of threads and after kills; errors.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
configs=$NG_SOURCE_DIR/configs

"$NG_BUILD_DIR/cli_pictures" folder 4 64
if [[ $? == 77 ]]; then # each part that is missing is named
  expect 0 '*images * = absent: built without *' "$natgrad" info
  mkdir -p folder/a && printf '\xff\xd8\xff' >folder/a/x.jpg && printf '\x89PNG\r\n\x1a\n' >folder/a/x.png
  expect 2 'natgrad: *without lib*' "$natgrad" train --data images:folder,size=16 --model logreg --batch 1 --steps 1
  finish
fi
expect 0 '*images jpeg = built in: libjpeg*images png = built in: libpng *' "$natgrad" info
[[ $(find folder -type f | wc -l) == 256 ]] || fail "not 256 files"
head -c 200 folder/class_01/image_010.jpg >cut && mv cut folder/class_01/image_010.jpg

# A published configuration with a small network and small images.
run() { # OUT THREADS ARGS...
  expect 0 "$3" "$natgrad" train --config "$configs/resnet50-bs32k.json" --data "images:folder,size=16,resize=20,threads=$2" --model resnet20 \
    --acc-iters 2 --batch 16 --quiet --out "$1" "${@:4}"
}
run one 1 '*folder/class_01/image_010.jpg: unreadable, left out (1 of 256 files): *' --steps 12 --checkpoint-every 5
run four 4 '*image_010.jpg: unreadable, left out (1 of 256 files): *' --steps 12
run parts 3 '*' --steps 5
run parts 2 '*' --steps 12 --resume
for other in four parts; do
  checkpoints_match one $other || fail "$other: another checkpoint"
done
checkpoints_match one four natgrad.mixup || fail "running mixup keeps no batch"
expect 2 'natgrad: --data: images:folder,size=16,resize=22 has other samples than the run in one began with' \
  "$natgrad" train --data images:folder,size=16,resize=22 --out one --resume --steps 13

# The run learns the colours of four classes.
expect 0 '*test accuracy * %*' "$natgrad" train --data images:folder,size=16,resize=20,test=folder --model resnet20 --batch 16 \
  --epochs 2 --lr 0.03
accuracy=$(sed -nE 's/.*test accuracy ([0-9.]+) %.*/\1/p' "$scratch/out" | tail -1)
awk "BEGIN { exit !($accuracy >= 70) }" || fail "test accuracy is only $accuracy %"

# More than 1 % damaged files end the run.
mkdir worse && cp -r folder/* worse/
for i in 1 3 5; do echo no >worse/class_02/image_00$i.png; done
expect 2 'natgrad: *' "$natgrad" train --data images:folder,size=16,resize=20 --model resnet20 --batch 512
"$natgrad" train --data images:worse,size=16,resize=20 --model resnet20 --batch 16 --epochs 2 --quiet 2>err
[[ $? == 2 && $(tail -1 err) == 'natgrad: --data: images: 3 of 256 files are unreadable, more than 1 %; the last is worse/class_0'* ]] ||
  fail "worse: $(cat err)"
mkfifo folder/class_03/pipe
expect 2 'natgrad: --data: folder/class_03/pipe: is neither a file nor a folder' \
  timeout $patience "$natgrad" train --data images:folder,size=16 --model resnet20
expect 2 "natgrad: --erase-rate: model autoencoder has no labels" "$natgrad" train --model autoencoder --erase-rate 0.5
finish
