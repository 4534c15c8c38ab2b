#!/bin/bash
# compare_refresh.sh MNIST CIFAR OUT: what the cheap defaults of natgrad lose, in docs/reproduce.md: the whole A of every
# convolution and new inverses in every step (first), the defaults, and periods by overhead. MNIST and CIFAR are folders of the
# data sets. A second call resumes. NATGRAD: the program (build/natgrad).
set -eu
[ $# = 3 ] || { sed -n 's/^# //p' "$0" | head -3; exit 2; }
program=${NATGRAD:-build/natgrad}
export NG_THREADS=1 OPENBLAS_NUM_THREADS=1
methods=natgrad:spatial=full,solve-period=1,gradient-rows=0,natgrad,natgrad:overhead=0.3

# compare NAME OPTIONS: one comparison in OUT/NAME
compare() {
  local resume=
  [ -d "$out/$1" ] && resume=--resume
  "$program" compare --methods "$methods" --quiet --out "$out/$1" $resume "${@:2}"
}

out=$3
mkdir -p "$out"
compare mlp --data "mnist:$1" --model mlp --batch 64 --epochs 1 --seeds 5
compare lenet --data "mnist:$1" --model lenet --batch 64 --epochs 1 --seeds 5
compare resnet20 --data "cifar10:$2" --model resnet20 --batch 128 --epochs 2 --seeds 3
