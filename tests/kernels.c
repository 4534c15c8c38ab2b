/* kernels.c: the device of kernels.h. */
#include "kernels.h"

#include "unit_test.h"

#include "backend.h"

static ng_device *device;

ng_queue kernels_device(void) {
  ng_queue q = {.threads = 1};
  const char *error = device == NULL ? ng_device_open(0, &device) : NULL;
  if (error != NULL) fail_msg("the device does not open: %s", error);
  ng_device_attach(device, &q);
  return q;
}

void kernels_check_device(void) {
  if (device != NULL && ng_device_error(device) != NULL) fail_msg("%s", ng_device_error(device));
}
