#!/bin/bash
# compare_methods.sh CIFAR MNIST TEXT OUT: the comparisons of nine methods in docs/reproduce.md: a small GPT over the characters of the
# file TEXT, ResNet-20 on the folder of CIFAR-10, LeNet on the folder of MNIST. A second call resumes. NATGRAD: the program.
set -eu
[ $# = 4 ] || { sed -n 's/^# //p' "$0" | head -2; exit 2; }
program=${NATGRAD:-build/natgrad}
export NG_THREADS=1 OPENBLAS_NUM_THREADS=1
methods=sgd,adamw,natgrad,kfac-adam,ekfac:damping=0.1,eva-natgrad,muon,soap,shampoo:solve-period=10,grafting=adam,damping=1e-6

# compare NAME OPTIONS: one comparison in OUT/NAME
compare() {
  local resume=
  [ -d "$out/$1" ] && resume=--resume
  "$program" compare --methods "$methods" --grid lr=0.003,0.01,0.03,0.1 --quiet --out "$out/$1" $resume "${@:2}"
}

out=$4
mkdir -p "$out"
compare gpt --data "text:$3,context=64" --model gpt-char-64-2-4 --batch 16 --steps 150 --seeds 2
compare resnet20 --data "cifar10:$1" --model resnet20 --batch 64 --steps 120 --grid-epochs 0.36 --seeds 1
compare mnist --data "mnist:$2" --model lenet --batch 64 --steps 150 --seeds 2
