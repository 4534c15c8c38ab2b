#!/usr/bin/env bash
# Build and run the tests of tests.cmake that have the stand-in with a sanitizer. The thread sanitizer needs memory at fixed addresses.
# Exit code 77: the compiler has no sanitizers.
set -euo pipefail
echo 'int main(void) { return 0; }' | cc -fsanitize=address,undefined -x c -o /dev/null - 2>/dev/null ||
  { echo "skipped: the compiler has no sanitizers"; exit 77; }
cmake --build . -j 2 --target "$@" >standin_sanitized.log || { tail -20 standin_sanitized.log; exit 1; }
plain="setarch $(uname -m) -R"
$plain true 2>/dev/null || plain=
for program in "$@"; do
  echo "$program"
  ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=halt_on_error=1 $plain "./$program" >standin_sanitized.log 2>&1 || { tail -40 standin_sanitized.log; exit 1; }
done
