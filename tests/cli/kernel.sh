#!/usr/bin/env bash
# The program restarts itself once for the settings of OpenBLAS that the user did not set.  Tested on a copy with an OpenBLAS
# that selects AVX2 (fake_openblas.c).
. "$(dirname "$0")/lib.sh"
fake=$NG_BUILD_DIR/cli_fake_openblas
unset OPENBLAS_THREAD_TIMEOUT OPENBLAS_CORETYPE NATGRAD_KEEP_KERNEL NATGRAD_STARTED_AGAIN FAKE_DEAF

wide=SkylakeX
for flag in avx512f avx512dq avx512bw avx512cd avx512vl; do
  grep -qw "$flag" /proc/cpuinfo || wide=Haswell # then there is nothing to gain
done
expect 0 "*kernel = $wide*" "$fake" info
expect 0 '*kernel = Haswell*' env NATGRAD_KEEP_KERNEL=1 "$fake" info
expect 0 "*kernel = $wide*" env NATGRAD_KEEP_KERNEL=0 "$fake" info
expect 0 '*kernel = Zen*' env OPENBLAS_CORETYPE=Zen "$fake" info
expect 0 '*kernel = Haswell*' timeout $patience env FAKE_DEAF=1 "$fake" info
expect 0 '*, timeout 18*' "$fake" info
expect 0 '*, timeout 20*' env OPENBLAS_THREAD_TIMEOUT=20 "$fake" info
expect 0 '*, timeout 26*' env NATGRAD_KEEP_KERNEL=1 "$fake" info
# Arguments and exit code survive.
expect 2 "*info: unexpected argument 'a b'" "$fake" info 'a b'
finish
