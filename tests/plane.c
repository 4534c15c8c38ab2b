/* plane.c: see plane.h. */
#include "plane.h"

#include <string.h>

plane plane_of(void *data, int64_t rows, int64_t cols, ng_dtype dtype) {
  plane v;
  memset(&v, 0, sizeof v);
  v.data = data;
  v.rows = rows;
  v.cols = v.row_stride = cols;
  v.dtype = dtype;
  v.mem = NG_HOST;
  return v;
}

plane plane_images(void *data, plane_order order, int64_t n, int64_t channels, int64_t height,
                   int64_t width, ng_dtype dtype) {
  plane v = plane_of(data, n, channels * height * width, dtype);
  v.order = order;
  v.channels = channels;
  v.height = height;
  v.width = width;
  return v;
}

ng_array array_of_plane(const plane *v) {
  ng_array a;
  if (v->order == 0) {
    a = ng_array_rows(v->data, v->rows, v->cols, v->row_stride, v->dtype);
  } else if (v->order == PLANE_NHWC) {
    a = ng_array_nhwc(v->data, v->rows, v->channels, v->height, v->width, v->dtype);
  } else {
    a = ng_array_nchw(v->data, v->rows, v->channels, v->height, v->width, v->dtype);
  }
  a.room[4] = v->row_stride;
  a.mem = v->mem;
  return a;
}

typedef ng_status bind_call(ng_precond *, int32_t, ng_param, const ng_array *);
typedef ng_status observe_call(ng_precond *, int32_t, const ng_array *, ng_loan);

static ng_status bind_plane(bind_call *call, ng_precond *p, int32_t index, ng_param which,
                            const plane *v) {
  if (v == NULL) return call(p, index, which, NULL);
  const ng_array a = array_of_plane(v);
  return call(p, index, which, &a);
}

static ng_status observe_plane(observe_call *call, ng_precond *p, int32_t layer, const plane *v,
                               ng_loan loan) {
  if (v == NULL) return call(p, layer, NULL, loan);
  const ng_array a = array_of_plane(v);
  return call(p, layer, &a, loan);
}

ng_status plane_bind_grad(ng_precond *p, int32_t index, ng_param which, const plane *v) {
  return bind_plane(ng_bind_grad, p, index, which, v);
}

ng_status plane_bind_weight(ng_precond *p, int32_t index, ng_param which, const plane *v) {
  return bind_plane(ng_bind_weight, p, index, which, v);
}

ng_status plane_observe_input(ng_precond *p, int32_t layer, const plane *v, ng_loan loan) {
  return observe_plane(ng_observe_input, p, layer, v, loan);
}

ng_status plane_observe_output_grad(ng_precond *p, int32_t layer, const plane *v, ng_loan loan) {
  return observe_plane(ng_observe_output_grad, p, layer, v, loan);
}

ng_status plane_add_conv2d(ng_precond *p, const char *name, int64_t in, int64_t out, int64_t kernel,
                           int64_t stride, int64_t padding, int64_t height, int64_t width,
                           int32_t bias, int32_t *index) {
  const int64_t k[2] = {kernel, kernel}, s[2] = {stride, stride}, pad[2] = {padding, padding};
  const int64_t image[2] = {height, width};
  return ng_add_conv2d(p, name, in, out, k, s, pad, NULL, 1, image, bias, index);
}
