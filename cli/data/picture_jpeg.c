/* picture_jpeg.c: decode JPEG by libjpeg-turbo. Errors of the library jump to decode_pixels (longjmp). Its warnings
 * about pixels count as errors. */
#include "picture.h"

#ifdef NG_HAVE_JPEG
#include "common/cli.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include <jerror.h>

/* Limit of the time: a progressive file may have any number of scans, and each scan is a pass over all pixels. */
enum { MOST_SCANS = 500 };

typedef struct reader {
  /* first member, because callbacks of libjpeg cast its address to `reader` */
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf back;
  char *why;
  picture *out;
  uint8_t *line; /* buffer for one row of CMYK pixels */
} reader;

static void on_error(j_common_ptr c) {
  reader *r = (reader *)(void *)c;
  char text[JMSG_LENGTH_MAX];
  c->err->format_message(c, text);
  (void)snprintf(r->why, PICTURE_WHY, "%.150s", text);
  longjmp(r->back, 1);
}

/* Return true if this warning does not concern pixels. */
static bool is_harmless(int code) {
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
}

static void on_warning(j_common_ptr c, int level) {
  if (level < 0 && !is_harmless(c->err->msg_code)) on_error(c);
}

static void ignore_message(j_common_ptr c) { (void)c; }

static void limit_scans(j_common_ptr c) {
  reader *r = (reader *)(void *)c;
  if (r->jpeg.input_scan_number <= MOST_SCANS) return;
  (void)snprintf(r->why, PICTURE_WHY, "more than %d scans", MOST_SCANS);
  longjmp(r->back, 1);
}

/* Convert a row of CMYK to RGB. `inverted`: the value 255 means no ink, as Adobe writes. */
static void cmyk_to_rgb(const uint8_t *line, int64_t width, bool inverted, uint8_t *to) {
  for (int64_t x = 0; x < width; x++) {
    unsigned ink[4];
    for (int k = 0; k < 4; k++)
      ink[k] = inverted ? line[4 * x + k] : 255U - line[4 * x + k];
    for (int k = 0; k < 3; k++)
      to[3 * x + k] = (uint8_t)((ink[k] * ink[3] + 127U) / 255U);
  }
}

static bool decode_pixels(reader *r, const uint8_t *bytes, size_t n) {
  struct jpeg_decompress_struct *j = &r->jpeg;
  if (setjmp(r->back) != 0) return false;
  jpeg_create_decompress(j);
  j->progress = &r->progress;
  jpeg_mem_src(j, bytes, (unsigned long)n);
  (void)jpeg_read_header(j, TRUE);
  const int64_t width = j->image_width, height = j->image_height;
  if (!picture_allocate(height, width, r->out, r->why)) return false;
  const bool inks = j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK;
  j->out_color_space = inks ? JCS_CMYK : JCS_RGB;
  (void)jpeg_start_decompress(j);
  if (j->output_components != (inks ? 4 : 3)) {
    (void)snprintf(r->why, PICTURE_WHY, "%d channels, expected 3 or 4", j->output_components);
    return false;
  }
  if (inks) r->line = cli_alloc((size_t)width, 4);
  while ((int64_t)j->output_scanline < height) {
    uint8_t *to = r->out->rgb + (int64_t)j->output_scanline * width * 3;
    JSAMPROW row = inks ? r->line : to;
    (void)jpeg_read_scanlines(j, &row, 1);
    if (inks) cmyk_to_rgb(r->line, width, j->saw_Adobe_marker != 0, to);
  }
  (void)jpeg_finish_decompress(j);
  return true;
}

static bool decode_jpeg(const uint8_t *bytes, size_t n, picture *out, char why[PICTURE_WHY]) {
  reader *r = cli_alloc(1, sizeof *r);
  r->why = why;
  r->out = out;
  r->jpeg.err = jpeg_std_error(&r->errors);
  r->errors.error_exit = on_error;
  r->errors.emit_message = on_warning;
  r->errors.output_message = ignore_message;
  r->progress.progress_monitor = limit_scans;
  const bool good = decode_pixels(r, bytes, n);
  if (setjmp(r->back) == 0) jpeg_destroy_decompress(&r->jpeg);
  free(r->line);
  free(r);
  return good;
}

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#ifdef LIBJPEG_TURBO_VERSION
#define LIBRARY "libjpeg-turbo " TEXT_OF(LIBJPEG_TURBO_VERSION)
#else
#define LIBRARY "libjpeg " TEXT_OF(JPEG_LIB_VERSION)
#endif
#else
#define LIBRARY NULL
#define decode_jpeg NULL
#endif

const picture_format picture_jpeg = {"jpeg", "\xff\xd8\xff", LIBRARY,
                                     "built without libjpeg-turbo (apt-get install libjpeg-dev)",
                                     decode_jpeg};
