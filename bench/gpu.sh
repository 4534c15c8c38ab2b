#!/usr/bin/env bash
# gpu.sh --pack DIR: put into DIR everything that a machine with a GPU needs: the tests of the kernels, gpu_eva, their
#                    libraries, this script. Needs nvcc.
# DIR/gpu.sh:        run the tests and the bench there, also under compute-sanitizer, beside PyTorch: 2 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tests="t_kernels_copy t_kernels_emit t_kernels_gram t_kernels_measure t_kernels_norm t_strides t_linalg t_eigen t_twosided t_vector"
contexts="t_rankone t_norm t_oracle" # run with linalg = cuda

if [[ ${1:-} == --pack && $# -eq 2 ]]; then
  root=$here/..
  mkdir -p "$2" && to=$(cd "$2" && pwd)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  build=$work/build # without BLAS, which may be missing on the machine with the GPU
  (cd "$root" && cmake --preset release -B "$build" -DNATGRAD_BLAS=OFF -DNATGRAD_MPI=OFF -DNATGRAD_IMAGES=OFF &&
    cmake --build "$build" --target natgrad_static natgrad_test_support) >"$work/log" || { tail "$work/log" >&2; exit 1; }
  gpus=()
  for gpu in 80 90 100; do gpus+=(-gencode "arch=compute_$gpu,code=sm_$gpu"); done
  nvcc -fmad=false "${gpus[@]}" -gencode arch=compute_100,code=compute_100 -fatbin -o "$work/kernels.fatbin" "$root/cuda/kernels.cu"
  cd "$work"
  flags="-std=c11 -O2 -fPIC -fvisibility=hidden -D_GNU_SOURCE -DNG_EXPERIMENTAL -ffp-contract=off -I$root/include -I$root/src -I$root/base -I$root/io -I$root/tests -I$root/cuda"
  cc -c "$root/cuda/kernels.S" -o fatbin.o
  device="backend backend_arrays backend_eva backend_flat backend_sums blas_cuda desk_cuda linalg memory solve stage" # cuda/*.c
  for file in $(printf "cuda/%s " $device) bench/gpu_eva tests/directions tests/kernels tests/linalg_check tests/pictures src/linalg/packed src/linalg/sym; do
    cc $flags -c "$root/$file.c" -o "$(basename $file).o"
  done
  cc -shared -Wl,--version-script="$root/src/natgrad.map" $(printf "%s.o " $device) packed.o sym.o fatbin.o -o "$to/libnatgrad_cuda.so.0" -ldl -lm
  cc $flags -fno-builtin -c "$root/tests/gpu_memory.c" -o gpu_memory.o
  for test in $tests $contexts; do
    cc $flags "-DNG_SOURCE_DIR=\"$root\"" -c "$root/tests/$test.c" -o "$test.o"
    # norelro: gpu_memory.c registers whole segments with the device; no part may become read-only
    cc -Wl,-z,norelro "$test.o" directions.o pictures.o linalg_check.o kernels.o fatbin.o $(printf "%s.o " $device) gpu_memory.o \
      -o "$to/$test" "$build/libnatgrad_test_support.a" "$build/libnatgrad.a" \
      -lz -ldl -lm -lpthread -lcmocka
  done
  cc gpu_eva.o desk_cuda.o fatbin.o -o "$to/gpu_eva" -ldl -lm
  ldd "$to"/t_* | awk '$3 ~ /^\// { print $3 }' | grep -vE '/lib(c|m|dl|pthread|rt)\.so' | sort -u | xargs -I{} cp -L {} "$to/"
  cp "$here/gpu.sh" "$here/gpu_peer.py" "$to/"
  du -sh "$to"
  exit
elif [[ $# -gt 0 || ! -x $here/gpu_eva ]]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi

# cuBLAS and cuSOLVER: of the toolkit, or of the packages that PyTorch brings
packages=$(python3 -c 'import glob, site; print(":".join(glob.glob(site.getsitepackages()[0] + "/nvidia/*/lib")))' 2>/dev/null || true)
export LD_LIBRARY_PATH=$here${packages:+:$packages}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OPENBLAS_NUM_THREADS=1
cd "$here"
status=0
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv
for model in resnet18 resnet50; do timeout 60 ./gpu_eva $model || status=1; done
for test in $tests; do
  timeout 100 "./$test" 2>&1 | grep -E '^(device:|\[  |gpu_memory)' || status=1
done
for test in $contexts; do
  NG_LINALG=cuda NG_CUDA_LIBRARY=$here/libnatgrad_cuda.so.0 timeout 100 "./$test" 2>&1 | grep -E '^(device:|\[  |gpu_memory)' || status=1
done
timeout 60 compute-sanitizer --error-exitcode 9 ./gpu_eva resnet18 | tail -n 1 || status=1
timeout 60 compute-sanitizer --tool racecheck --error-exitcode 9 ./gpu_eva tiny | tail -n 1 || status=1
python3 gpu_peer.py || status=1
exit $status
