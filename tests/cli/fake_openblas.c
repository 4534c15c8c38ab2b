/* fake_openblas.c: functions of OpenBLAS, linked into a copy of the program in place of the real BLAS. They report AVX2
 * kernels unless OPENBLAS_CORETYPE names others; with FAKE_DEAF they ignore this variable. */
#include <stdio.h>
#include <stdlib.h>

char *openblas_get_config(void);
char *openblas_get_corename(void);

__attribute__((visibility("default"))) char *openblas_get_config(void) {
  static char text[80];
  const char *timeout = getenv("OPENBLAS_THREAD_TIMEOUT");
  (void)snprintf(text, sizeof text, "OpenBLAS 0.0.0 DYNAMIC_ARCH, timeout %.20s",
                 timeout ? timeout : "26");
  return text;
}

__attribute__((visibility("default"))) char *openblas_get_corename(void) {
  static char narrow[] = "Haswell";
  char *told = getenv("OPENBLAS_CORETYPE");
  return told != NULL && getenv("FAKE_DEAF") == NULL ? told : narrow;
}
