/* work.h: the working data of a save or a load, and the agreement of all ranks; for the files of state/ only.
 *
 * In:  a model between two steps.
 * Out: its fields in the order of files, memory for the call, one status on all ranks.
 *
 * No rank returns between two collectives: a failure of one rank stays in its `st` and `message` until
 * ng_work_tell sends it, so that every rank reports the same failure. */
#ifndef NG_STATE_WORK_H
#define NG_STATE_WORK_H

#include "part_files.h"
#include "safetensors.h"
#include "state/state.h"

/* Keys of the metadata. */
#define NG_MANIFEST "natgrad"
#define NG_MANIFEST_CRC "natgrad.crc32"

/* One array of the state. */
typedef struct ng_item {
  ng_field f;
  const char *key, *name; /* name of the block or layer; "key/field" */
  const void *data;       /* load: the verified part that this rank reads, in published order */
} ng_item;

/* A piece of an array: columns [from, to) of every row, or rows (by_rows), or the whole array. */
typedef struct ng_part_piece {
  int32_t part; /* index of its file */
  int64_t from, to;
  bool whole, by_rows;
  const char *crc; /* NG_HEX digits */
  bool finite;
} ng_part_piece;

typedef struct ng_work {
  ng_precond *p;
  const char *label;       /* prefix of messages: the public function, later the file */
  const ng_outside *place; /* NULL: no file or stream */
  bool first;              /* this is rank 0 */
  struct ng_taken *taken;  /* memory of the call */
  ng_item *item;           /* [fields] wide dtypes first, so that all data in the file is aligned */
  int32_t fields;
  int64_t largest; /* bytes of the largest field, or of its largest row if ranks hold columns */
  int64_t value_count;
  double *values;      /* ng_state_values; save: then rung counters and seals */
  void *memory;        /* one field, or a row, in the order of memory */
  void *published;     /* one field in published order */
  ngio_out out;        /* save: the manifest, with a 0 */
  ngio_json *manifest; /* load */
  ngio_writer *writer;
  ngio_source source; /* load, rank 0 */
  ngio_tensors *file; /* load, rank 0 */
  ng_status
      st; /* the first failure of this rank since the last ng_work_tell; `message` describes it */
  char message[NG_MESSAGE];
} ng_work;

/* Check the arguments and that no step is in progress. false: the failure is in *w. */
bool ng_work_open(ng_work *w, ng_precond *p, const char *call, const ng_outside *place);
bool ng_work_list(ng_work *w);
void ng_work_close(ng_work *w); /* may be called after any failure; removes an unfinished file */

/* Allocate memory that ng_work_close frees. NULL: no memory; the failure is in *w. */
void *ng_work_take(ng_work *w, int64_t bytes);

/* Dtype and shape of a piece in its file; q NULL: of the whole array. */
ngio_tensor ng_tensor_of(const char *name, const ng_field *f, const ng_part_piece *q);
/* Return the difference between a tensor of a file and the expected one, or NULL. */
const char *ng_tensor_misfit(const ngio_tensor *want, const ngio_tensor *t);
ng_rect ng_piece_rect(const ng_part_piece *q, const ng_field *f); /* not for symmetric arrays */

/* Sum doubles over ranks; broadcast bytes. Both may fail with NG_ERR_COMM. */
ng_status ng_work_sum(ng_work *w, double *x, int64_t count);
ng_status ng_work_broadcast(ng_work *w, void *buffer, int64_t bytes, int32_t root);
/* Return on all ranks the worst `st` of any rank, with the message of the first failed rank. */
ng_status ng_work_tell(ng_work *w);

/* For a field that ranks hold in parts. ng_work_part: copy this rank's part of row `row` to
 * (out) or from w->memory. ng_work_row: gather the row in w->memory on all ranks. A field sliced by
 * rows counts as one row. */
int64_t ng_work_rows(const ng_field *f);
void ng_work_part(ng_work *w, const ng_field *f, int64_t row, bool out);
ng_status ng_work_row(ng_work *w, const ng_field *f, int64_t row);

/* Store a failure of io/, which wrote the message, in *w; return whether `st` is a success. */
bool ng_work_fine(ng_work *w, ngio_status st);
/* Store a failure with its message in *w, unless *w has one; return false. */
bool ng_work_refuse(ng_work *w, ng_status st, const char *format, ...) NG_PRINTF(3, 4);
ngio_alloc ng_work_payload(ng_work *w); /* allocate payloads of files from the context */

enum { NG_HEX = 8 }; /* digits */
typedef struct ng_hex {
  char text[12];
} ng_hex;
/* CRC-32 as in zlib: detects damage, not manipulation. */
uint32_t ng_crc_of(const void *data, int64_t bytes);
uint32_t ng_crc_on(uint32_t crc, const void *data, int64_t bytes); /* continue from `crc` */
ng_hex ng_hex_of(uint32_t crc);
/* A checksum and a flag "all elements are finite" as one double. The sum over ranks, with 0 on
 * all other ranks, is exact. */
double ng_seal(uint32_t crc, bool finite);
ng_hex ng_seal_of(double seal, bool *finite);

/* ---- manifest_write.c, manifest.c ------------------------------------------------------------------------*/

/* The largest count in a file: other JSON readers use doubles, which are exact up to here. */
#define NG_COUNT_MOST (INT64_C(1) << 53)
extern const char *const ng_rung_name[NG_RESCUES];
/* Describe a layer for comparison and for messages. */
void ng_manifest_describe(const ng_entry *e, char *text, size_t size);
size_t ng_manifest_room(const ng_precond *p); /* buffer size for the text of any option */
bool ng_manifest_option(int32_t i, ng_option_info *info);

/* Write the manifest up to its tensors, from w->values, to w->out. */
bool ng_manifest_begin(ng_work *w, int format);
/* Write the entry of an array in one file; or (open, piece) an array with a list of pieces. */
void ng_manifest_tensor(ngio_out *o, const char *name, const char *crc, bool finite);
void ng_manifest_open(ngio_out *o, const ng_item *item);
void ng_manifest_piece(ngio_out *o, const ng_part_piece *q);
/* Write the end of the manifest: the list of parts if parts > 1, and a terminating 0, which is counted. */
bool ng_manifest_end(ng_work *w, const int64_t *bytes, const int64_t *tensors, int32_t parts);

/* The verified content of a manifest. */
typedef struct ng_snapshot {
  ng_options opt; /* texts borrowed from p */
  int64_t steps, updates, skipped, rung[4];
  int32_t parts; /* number of files */
  double nu, inner;
} ng_snapshot;

/* Compare w->manifest with this model; fill *s and w->values.  Nothing of the model changes. */
bool ng_manifest_read(ng_work *w, ng_snapshot *s);
/* Copy the snapshot and the values into the model. Cannot fail. */
void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values);

/* Return the list of pieces of an array from its entry `v` in a manifest of `parts` files; NULL:
 * the list is invalid. */
const ngio_value *ng_pieces_read(const ngio_value *v, const ng_field *f, int32_t parts);
/* Read one item of that list, or the entry of an array in one file.  crc NULL: invalid. */
ng_part_piece ng_piece_of(const ngio_value *v, const ng_field *f);

#endif
