#!/usr/bin/env bash
# The layer lists of `bench` against published values: ResNet-18 for 32 x 32 images has sum (p + q) = 36,416; ResNet-50 has
# the published orders in each layer.
. "$(dirname "$0")/lib.sh"

A='147 64 576 64 64 256 576 64 256 576 64 256 1152 128 256 512 1152 128 512 1152 128 512 1152 128
 512 2304 256 512 1024 2304 256 1024 2304 256 1024 2304 256 1024 2304 256 1024 2304 256 1024 4608
 512 1024 2048 4608 512 2048 4608 512 2049'
G='64 64 64 256 256 64 64 256 64 64 256 128 128 512 512 128 128 512 128 128 512 128 128 512 256 256
 1024 1024 256 256 1024 256 256 1024 256 256 1024 256 256 1024 256 256 1024 512 512 2048 2048 512
 512 2048 512 512 2048 1000'
orders() { "$natgrad" bench kfac --model resnet50 --list | awk -v c="$1" 'NR > 1 && $1 !~ /^[0-9]/ {print $c}' | xargs; }
[[ $(orders 2) == $(echo $A) ]] || fail "resnet50, A: $(orders 2)"
[[ $(orders 3) == $(echo $G) ]] || fail "resnet50, G: $(orders 3)"
# Positions follow from image, stride and padding: 112^2, 56^2, 28^2, 14^2, 7^2 and 1 for the fc; for ResNet-18
# 32^2, 16^2, 8^2, 4^2.
positions() { "$natgrad" bench kfac --model "$1" --list | awk 'NR > 1 && $1 !~ /^[0-9]/ {print $4}' | uniq -c | xargs; }
[[ $(positions resnet50) == '1 12544 11 3136 13 784 19 196 9 49 1 1' ]] ||
  fail "resnet50, positions: $(positions resnet50)"
[[ $(positions resnet18) == '5 1024 5 256 5 64 5 16 1 1' ]] || fail "resnet18, positions: $(positions resnet18)"
expect 0 '*54 layers, sum of orders 82492, parameters 25503912' "$natgrad" bench kfac --model resnet50 --list
expect 0 '*21 layers, sum of orders 36416, parameters 11210532' "$natgrad" bench kfac --model resnet18 --list

# own MEMBERS: write a list of one layer.  A key that the kind of the layer does not have is an error with the key's name.
own() { echo "[{\"name\": \"a\", $1}]" >"$scratch/own.json"; }
conv='"kind": "conv2d", "in": 3, "out": 5, "kernel": 3, "image": 8'
own "$conv, \"positions\": 7"
expect 2 "*own.json: layer 0: conv2d has no key 'positions'*" "$natgrad" bench kfac --model "$scratch/own.json" --list
for key in kernel stride padding image; do
  own "\"kind\": \"linear\", \"in\": 3, \"out\": 5, \"$key\": 2"
  expect 2 "*own.json: layer 0: linear has no key '$key'*" "$natgrad" bench kfac --model "$scratch/own.json" --list
done
# Norms and embeddings are skipped; p belongs to one group, positions to a dilated kernel of width 5.
echo '[{"name": "n", "kind": "norm", "in": 4}, {"name": "e", "kind": "embedding", "in": 9, "out": 3}, {"name": "a", "kind":
  "conv2d", "in": 4, "out": 6, "kernel": 3, "image": 8, "groups": 2, "dilation": 2}]' >"$scratch/own.json"
expect 0 '*a * 18 * 3 * 16
1 layers, sum of orders 21, parameters 108' "$natgrad" bench kfac --model "$scratch/own.json" --list
expect 0 '*a/apply*' "$natgrad" bench kfac --model "$scratch/own.json" --repeat 1 --no-floors
own "$conv"
expect 0 '*1 layers, sum of orders 32, parameters 135' "$natgrad" bench kfac --model "$scratch/own.json" --list
expect 2 "natgrad: $scratch/none.json: *" "$natgrad" bench kfac --model "$scratch/none.json" --list
finish
