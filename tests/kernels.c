/* kernels.c: open and check the device of kernels.h, the stand-in or a GPU. */
#include "kernels.h"

#include "unit_test.h"

#include "backend.h"

static ng_backend backend;
static ng_queue queue = {.backend = &backend, .threads = 1};

ng_queue kernels_device(void) {
  backend = ng_backend_device;
  backend.under = &ng_backend_ref;
  backend.host = &ng_linalg_ref;
  const char *error = queue.device == NULL ? queue.backend->open(&queue) : NULL;
  if (error != NULL) fail_msg("the device does not open: %s", error);
  return queue;
}

void kernels_check_device(void) {
  const char *error = queue.device == NULL ? NULL : ng_device_error(queue.device);
  if (error != NULL) fail_msg("%s", error);
}
