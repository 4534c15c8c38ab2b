/* pictures.c: see pictures.h. */
#include "pictures.h"

#include "unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"

rng numbers;

void *new_aligned(int64_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 64, (size_t)(bytes > 0 ? bytes : 1)), 0);
  return p;
}

double draw_grid_value(void) { return (double)between(-15, 15) / 8; }

static ng_dtype draw_dtype(void) {
  static const ng_dtype all[] = {NG_F32, NG_F32, NG_BF16, NG_F16, NG_F64};
  return all[between(0, 4)];
}

static axis_order draw_axis_order(void) { return (axis_order)between(0, AXES_ORDERS - 1); }

const char *describe_picture(const picture *g, const char *way, const char *linalg) {
  static char text[300];
  const ng_conv *c = &g->c;
  (void)snprintf(
      text, sizeof text,
      "%s on %s: %s %s %d channels [%d,%d) %dx%d kernel %dx%d stride %d,%d pad %d,%d dil %d,%d "
      "samples %d take %d one %d reduce %d",
      way, linalg, (const char *[]){"NCHW", "NHWC", "HNWC", "any"}[g->how], ng_dtype_name(g->t),
      (int)c->channels, (int)g->c0, (int)g->c1, (int)c->height, (int)c->width, (int)c->kernel[0],
      (int)c->kernel[1], (int)c->stride[0], (int)c->stride[1], (int)c->padding[0],
      (int)c->padding[1], (int)c->dilation[0], (int)c->dilation[1], (int)g->samples, (int)g->take,
      g->one, g->reduce);
  return text;
}

bool set_output_size(ng_conv *c) {
  int64_t out[2];
  for (int i = 0; i < 2; i++) {
    const int64_t room =
        (i == 0 ? c->height : c->width) + 2 * c->padding[i] - c->dilation[i] * (c->kernel[i] - 1);
    if (room < 1) return false;
    out[i] = (room - 1) / c->stride[i] + 1;
  }
  c->out_height = out[0];
  c->out_width = out[1];
  return true;
}

ng_conv conv_of(int64_t channels, int64_t height, int64_t width, int64_t kernel) {
  const int64_t padding = (kernel - 1) / 2;
  ng_conv c = {.channels = channels,
               .height = height,
               .width = width,
               .outputs = channels,
               .kernel = {kernel, kernel},
               .stride = {1, 1},
               .padding = {padding, padding},
               .dilation = {1, 1}};
  assert_true(set_output_size(&c));
  return c;
}

picture draw_picture(bool stride_one) {
  picture g = {.t = draw_dtype(),
               .how = draw_axis_order(),
               .samples = between(1, 5),
               .one = draw() % 2 != 0,
               .reduce = draw() % 3 ? 0 : (int)between(1, 2)};
  ng_conv *c = &g.c;
  do {
    *c = (ng_conv){.channels = between(1, 9),
                   .height = between(1, 9),
                   .width = between(1, 9),
                   .outputs = between(1, 9)};
    for (int i = 0; i < 2; i++) {
      c->kernel[i] = between(1, 5);
      c->stride[i] = stride_one ? 1 : between(1, 3);
      c->padding[i] = draw() % 2 ? (c->kernel[i] - 1) / 2 : between(0, c->kernel[i]);
      c->dilation[i] = draw() % 4 ? 1 : 2;
    }
  } while (!set_output_size(c));
  g.take = between(1, g.samples);
  g.c0 = draw() % 2 ? 0 : between(0, c->channels - 1);
  g.c1 = draw() % 2 ? c->channels : between(g.c0 + 1, c->channels);
  return g;
}

picture draw_rows(int64_t samples, int64_t height, int64_t width, int64_t cols) {
  picture g = {.c = conv_of(cols, height, width, 1),
               .t = draw_dtype(),
               .how = draw_axis_order(),
               .samples = samples,
               .take = between(1, samples),
               .one = draw() % 2 != 0,
               .reduce = (int)between(0, 2),
               .c0 = between(0, cols - 1)};
  g.c1 = between(g.c0 + 1, cols);
  return g;
}

static image_array new_layout(const picture *g) {
  static const int inner[3][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}, {1, 3, 0, 2}};
  const int64_t height = g->c.height, width = g->c.width;
  const int64_t extent[4] = {g->samples, g->c.channels, height, width};
  const bool any = g->how == AXES_ANY;
  int order[4] = {0, 1, 2, 3};
  image_array s;
  for (int i = 0; i < 4; i++) {
    const int k = (int)between(i, 3), swap = order[i];
    order[i] = any ? order[k] : inner[g->how][i];
    if (any) order[k] = swap;
  }
  int64_t next = any ? between(1, 2) : 1;
  for (int i = 0; i < 4; i++) {
    s.by[order[i]] = next;
    next *= extent[order[i]];
    if (any || i == 2) next += draw() % 2 ? 0 : between(1, 5);
  }
  s.data = new_aligned(next * 8);
  for (int64_t i = 0; i < next; i++)
    put(s.data, g->t, i, NAN);
  s.v = (ng_view){.data = s.data,
                  .dtype = g->t,
                  .samples = g->samples,
                  .positions = height * width,
                  .columns = g->c.channels,
                  .sample_stride = s.by[0],
                  .column_stride = s.by[1],
                  .position_stride = width == 1 ? s.by[2] : s.by[3],
                  .run_length = height * width};
  if (height > 1 && width > 1 && s.by[2] != width * s.by[3]) {
    s.v.run_length = width;
    s.v.axes = 1;
    s.v.extent[0] = height;
    s.v.stride[0] = s.by[2];
  }
  return s;
}

image_array new_image_array(const picture *g, double (*next)(void)) {
  const image_array v = new_layout(g);
  for (int64_t n = 0; n < g->samples; n++) {
    for (int64_t c = 0; c < g->c.channels; c++) {
      for (int64_t s = 0; s < v.v.positions; s++) {
        const int64_t y = s / g->c.width, x = s % g->c.width;
        const bool read = n < g->take && c >= g->c0 && c < g->c1;
        put(v.data, g->t, n * v.by[0] + c * v.by[1] + y * v.by[2] + x * v.by[3],
            read ? next() : NAN);
      }
    }
  }
  return v;
}
