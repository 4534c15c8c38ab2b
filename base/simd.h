/* simd.h: compile a function for several instruction sets; the loader selects one.
 *
 * NG_CLONES goes before a function whose loops the compiler vectorises and that is called for many elements
 * at once.  NG_CLONES is empty, and the function is compiled once,
 * - with sanitizers, which instrument the selecting function although it runs before they are ready;
 * - with C libraries other than glibc, which cannot select at load time. */
#ifndef NG_SIMD_H
#define NG_SIMD_H

#include <stdint.h>

/* NG_FETCH prefetches the cache line NG_FETCH_AHEAD bytes after `address`, which need not be valid:
 * one core then waits less for memory than with hardware prefetching alone. Use it in loops that read
 * much memory once. NG_FETCH_AHEAD = 0: no prefetching, for measurements (docs/performance.md). */
#ifndef NG_FETCH_AHEAD
#define NG_FETCH_AHEAD 2048
#endif
#if defined(__GNUC__) && NG_FETCH_AHEAD > 0
#define NG_FETCH(address) __builtin_prefetch((const void *)((uintptr_t)(address) + NG_FETCH_AHEAD))
/* Prefetch the cache line at an address that is given as an integer. */
#define NG_FETCH_LINE(number) __builtin_prefetch((const void *)(number))
/* Prefetch all lines of `bytes` bytes at `address`, for data that is needed soon. */
#define NG_FETCH_LINES(address, bytes)                                                             \
  do {                                                                                             \
    for (int64_t line = 0; line < (bytes); line += 64) {                                           \
      __builtin_prefetch((const char *)(address) + line);                                          \
    }                                                                                              \
  } while (0)
#else
#define NG_FETCH(address) ((void)(address))
#define NG_FETCH_LINE(number) ((void)(number))
#define NG_FETCH_LINES(address, bytes) ((void)(address), (void)(bytes))
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer) || __has_feature(coverage_sanitizer)
#define NG_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NG_SANITIZED
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) &&                         \
    !defined(NG_SANITIZED) &&                                                                      \
    ((defined(__clang__) && __clang_major__ >= 14) ||                                              \
     (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 9))
#define NG_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define NG_CLONES
#endif

#endif
