/* manifest.h: DIR/checkpoint/latest.json, which says what belongs together:
 *
 *   {"schema": 2, "step": N,
 *    "model": {"bytes": B, "head": C}, "precond": {"bytes": B, "head": C},
 *    in parts "precond": {..., "parts": N, "id": C}, as in the names of the others (parts.h),
 *    with mixup "mixup": {"bytes": B, "head": C}, with averaged weights "average": the same,
 *    "before": null, or {"step", "model", ...}: the set that this one replaced,
 *    "config": C, "config_next": null or C, "log_bytes": B, "log": C,
 *    "seconds": X, "ms": {STATION: X, ...}, "made_by": {"version": TEXT, ...},
 *    "crc32": C}
 *
 * C: a CRC-32 in hexadecimal; of a safetensors file that of its head, which holds the checksums of all
 * tensors; of log.jsonl that of its first log_bytes; "crc32" that of everything before it in this file.
 * X: a double in hexadecimal.  config_next: config.json may already be the next one. */
#ifndef MANIFEST_H
#define MANIFEST_H

#include "train.h"

typedef struct manifest_file {
  int64_t bytes;
  uint32_t head;
  int32_t parts; /* files that it is in, this one among them (parts.h); 0: this one alone */
  uint32_t id;   /* ... and have this in their names */
} manifest_file;

enum { MANIFEST_MODEL, MANIFEST_PRECOND, MANIFEST_MIXUP, MANIFEST_AVERAGE, MANIFEST_PARTS };
extern const char *const manifest_part[MANIFEST_PARTS]; /* "model", ...: keys, and names of files */

typedef struct manifest_set {
  int64_t step;                       /* -1: there is none */
  manifest_file file[MANIFEST_PARTS]; /* no bytes: without that part, as may be from mixup on */
} manifest_set;

enum { MANIFEST_MADE_BY = 9, MANIFEST_TEXT = 128 };

typedef struct manifest {
  manifest_set now, before;
  uint32_t config, config_next; /* the same if config.json does not change */
  int64_t log_bytes;
  uint32_t log;
  double seconds; /* of training, as in log.jsonl */
  int stations;
  train_station station[TRAIN_STATIONS];         /* totals */
  char made_by[MANIFEST_MADE_BY][MANIFEST_TEXT]; /* manifest_made_by */
} manifest;

void manifest_init(manifest *m); /* no set */
int manifest_write(const char *path, const manifest *m);
int manifest_read(const char *path, manifest *m);

/* Of a safetensors file; told. */
int manifest_look(const char *path, manifest_file *out);
/* It is there, a regular file and no link, and that one; says nothing. */
bool manifest_is(const char *path, const manifest_file *f);

/* This program on this machine: all that decides the last bits. */
void manifest_made_by(manifest *m);
/* How `now` differs from `was`, as "threads 2, now 1; kernel ..."; "" if it does not. */
void manifest_differs(const manifest *was, const manifest *now, char *text, size_t size);

#endif
