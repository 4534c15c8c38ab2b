/* text.c: read a text as samples for a model that predicts the next character.
 *
 * A character is a byte. Token k is the k-th smallest byte that occurs in the file. Sample i has the `context`
 * characters from i * context on; the label of each character is the character after it. The last tenth of the samples
 * is the test split. Up to `context` characters at the end of the file are only labels, or left out. */
#include "readers.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, TEST = 10 };

static int parse_settings(char *text, const char **path, int64_t *context) {
  const data_setting known[] = {{"context", CLI_WHOLE, context, 1, 65536}};
  char *comma = strchr(text, ',');
  if (comma != NULL) *comma++ = 0;
  *path = text;
  if (text[0] == 0) return cli_fail("--data: text needs a file after a colon");
  return data_parse_settings("text", comma, known, sizeof known / sizeof known[0]);
}

/* Replace the bytes of the text by tokens. Return the number of different tokens. */
static int32_t make_tokens(uint8_t *text, int64_t count) {
  bool occurs[BYTES] = {false};
  uint8_t token[BYTES] = {0};
  int32_t tokens = 0;
  for (int64_t i = 0; i < count; i++)
    occurs[text[i]] = true;
  for (int b = 0; b < BYTES; b++) {
    if (occurs[b]) token[b] = (uint8_t)tokens++;
  }
  for (int64_t i = 0; i < count; i++)
    text[i] = token[text[i]];
  return tokens;
}

static int check_text(const char *path, int64_t count, int64_t context) {
  if (count == 0) return cli_fail("--data: %s: is empty", path);
  if (count <= context)
    return cli_fail("--data: %s: has %lld characters, context=%lld needs at least %lld", path,
                    (long long)count, (long long)context, (long long)context + 1);
  if (count < INT32_MAX) return CLI_OK;
  return cli_fail("--data: %s: has %lld characters, expected less than %d", path, (long long)count,
                  INT32_MAX);
}

static void set_splits(data_set *d, const uint8_t *tokens, int64_t count, int64_t context) {
  const int32_t n = (int32_t)((count - 1) / context), test = n / TEST;
  int32_t *labels = data_alloc(d, n * context, (int64_t)sizeof *labels);
  for (int64_t i = 0; i < n * context; i++)
    labels[i] = tokens[i + 1];
  d->train = (data_split){.n = n - test, .bytes = tokens, .labels = labels};
  d->test = (data_split){
      .n = test, .bytes = tokens + d->train.n * context, .labels = labels + d->train.n * context};
  d->height = d->channels = 1;
  d->width = d->context = context;
  d->byte_scale = 1.0;
  d->mean = data_alloc(d, 1, (int64_t)sizeof *d->mean);
  d->deviation = data_alloc(d, 1, (int64_t)sizeof *d->deviation);
  d->deviation[0] = 1.0F;
  data_set_scales(d);
}

static int read_file(const char *path, int64_t context, data_set *d) {
  data_stream *file = NULL;
  int rc = data_stream_open(path, true, &file);
  if (rc != CLI_OK) return rc;
  const int64_t count = data_stream_bound_bytes(file);
  rc = check_text(path, count, context);
  uint8_t *text = rc == CLI_OK ? data_alloc(d, count, 1) : NULL;
  if (rc == CLI_OK) rc = data_stream_read(file, text, count);
  data_stream_close(&file);
  if (rc != CLI_OK) return rc;
  d->classes = make_tokens(text, count);
  if (d->classes < 2)
    return cli_fail("--data: %s: has one distinct character, expected at least 2", path);
  set_splits(d, text, count, context);
  return CLI_OK;
}

int data_read_text(const char *settings, data_set *d) {
  char *copy = cli_copy_text(settings);
  const char *path = NULL;
  int64_t context = 128;
  int rc = parse_settings(copy, &path, &context);
  if (rc == CLI_OK) rc = read_file(path, context, d);
  free(copy);
  return rc;
}
