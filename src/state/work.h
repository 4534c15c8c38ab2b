/* work.h: what a call on the state works with, and what ranks say to each other meanwhile; for the
 * files of state/ alone.
 *
 * In:  a model between two steps.
 * Out: its fields in the order of files, memory for the call, one verdict on all ranks.
 *
 * No rank returns between two collectives: a failure of one rank stays in its `st` and `message` until ng_work_tell
 * sends it, so that every rank reports the same. */
#ifndef NG_STATE_WORK_H
#define NG_STATE_WORK_H

#include "part_files.h"
#include "safetensors.h"
#include "state/state.h"

/* Keys of the metadata. */
#define NG_MANIFEST "natgrad"
#define NG_MANIFEST_CRC "natgrad.crc32"

/* One array of the state, as this rank has it. */
typedef struct ng_item {
  ng_field f;
  const char *key, *name; /* the block, or the layer; "key/field" */
  const void *data;       /* load: verified, in published order, as much as this rank reads */
} ng_item;

/* A piece of an array: columns [from, to) of every row, or rows (by_rows), or the whole array. */
typedef struct ng_part_piece {
  int32_t part; /* the file that has it */
  int64_t from, to;
  bool whole, by_rows;
  const char *crc; /* NG_HEX digits */
  bool finite;
} ng_part_piece;

typedef struct ng_work {
  ng_precond *p;
  const char *label;       /* in front of messages: the file, or at first the public function */
  const ng_outside *place; /* NULL: nothing is written, and nothing read */
  bool first;              /* this is rank 0 */
  struct ng_taken *taken;  /* memory of the call */
  ng_item *item;           /* [fields] wide dtypes first: so all data is aligned in the file */
  int32_t fields;
  int64_t largest; /* bytes of the largest field, or of its largest row if ranks hold columns */
  int64_t value_count;
  double *values;      /* of the blocks and entries; save: rung counters and seals follow */
  void *memory;        /* one field, or a row, in the order of memory */
  void *published;     /* one field in published order */
  ngio_out out;        /* save: the manifest, with a 0 */
  ngio_json *manifest; /* load */
  ngio_writer *writer;
  ngio_source source; /* load, rank 0 */
  ngio_tensors *file; /* load, rank 0 */
  ng_status
      st; /* the first failure of this rank that the others do not know yet, with its message */
  char message[NG_MESSAGE];
} ng_work;

/* Check the arguments and the moment of the call; list the fields, in the same order on all ranks.  false: a failure,
 * in *w as every other. */
bool ng_work_open(ng_work *w, ng_precond *p, const char *call, const ng_outside *place);
bool ng_work_list(ng_work *w);
void ng_work_close(ng_work *w); /* at any stage; an unfinished file is removed */

/* Memory until ng_work_close; NULL: there is none, which is noted in *w. */
void *ng_work_take(ng_work *w, int64_t bytes);

/* Dtype and shape of a piece in its file; q NULL: of the whole array. */
ngio_tensor ng_tensor_of(const char *name, const ng_field *f, const ng_part_piece *q);
/* Why the tensor of a file is not the expected one, or NULL. */
const char *ng_tensor_misfit(const ngio_tensor *want, const ngio_tensor *t);
ng_rect ng_piece_rect(const ng_part_piece *q, const ng_field *f); /* not of a symmetric array */

/* The doubles are summed over ranks; all may fail with NG_ERR_COMM. */
ng_status ng_work_sum(ng_work *w, double *x, int64_t count);
ng_status ng_work_broadcast(ng_work *w, void *buffer, int64_t bytes, int32_t root);
/* The worst status that a rank has in `st`, on all, with the message of the first that failed. */
ng_status ng_work_tell(ng_work *w);

/* Row `row` of a field of which ranks hold parts: copy this rank's part between w->memory and the field; gather
 * the row in w->memory on all ranks.  A field sliced by rows counts as one row. */
int64_t ng_work_rows(const ng_field *f);
void ng_work_part(ng_work *w, const ng_field *f, int64_t row, bool out);
ng_status ng_work_row(ng_work *w, const ng_field *f, int64_t row);

/* Note a failure of io/, whose messages begin with the label; false: it failed. */
bool ng_work_fine(ng_work *w, ngio_status st);
/* Note a failure of our own, unless there is one, with the label in front; return false. */
bool ng_work_refuse(ng_work *w, ng_status st, const char *format, ...) NG_PRINTF(3, 4);
ngio_alloc ng_work_payload(ng_work *w); /* payloads of files come from the context */

enum { NG_HEX = 8 }; /* digits */
typedef struct ng_hex {
  char text[12];
} ng_hex;
/* CRC-32 as zlib has it: against damage, not against intent. */
uint32_t ng_crc_of(const void *data, int64_t bytes);
uint32_t ng_crc_on(uint32_t crc, const void *data,
                   int64_t bytes); /* ... of what came before, too */
ng_hex ng_hex_of(uint32_t crc);
/* A checksum and whether all is finite, in one number for a sum over ranks: exact in double, as is 0 + x. */
double ng_seal(uint32_t crc, bool finite);
ng_hex ng_seal_of(double seal, bool *finite);

/* ---- manifest_write.c, manifest.c ------------------------------------------------------------------------*/

/* JSON numbers are doubles elsewhere: counts are exact up to here, and no larger one is written or taken. */
#define NG_COUNT_MOST (INT64_C(1) << 53)
extern const char *const ng_rung_name[NG_RESCUES];
void ng_manifest_describe(const ng_entry *e, char *text,
                          size_t size);       /* a layer, for people, too */
size_t ng_manifest_room(const ng_precond *p); /* for the text of any option */
bool ng_manifest_option(int32_t i, ng_option_info *info);

/* Write the manifest up to its tensors, from w->values, to w->out. */
bool ng_manifest_begin(ng_work *w, int format);
/* The entry of an array in one file; or begin an array, and its pieces. */
void ng_manifest_tensor(ngio_out *o, const char *name, const char *crc, bool finite);
void ng_manifest_open(ngio_out *o, const ng_item *item);
void ng_manifest_piece(ngio_out *o, const ng_part_piece *q);
/* After all entries: the list of parts (parts > 1) and a 0, which is counted. */
bool ng_manifest_end(ng_work *w, const int64_t *bytes, const int64_t *tensors, int32_t parts);

/* What a manifest says about this model, verified and ready to be put in place. */
typedef struct ng_snapshot {
  ng_options opt; /* texts borrowed from p */
  int64_t steps, updates, skipped, rung[4];
  int32_t parts; /* files that the state is in */
  double nu, inner;
} ng_snapshot;

/* Compare w->manifest with this model; fill *s and w->values.  Nothing of the model changes. */
bool ng_manifest_read(ng_work *w, ng_snapshot *s);
/* Cannot fail. */
void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values);

/* The pieces of an array of this model, in its entry `v` of a manifest of `parts` files; NULL: not as they should
 * be.  Their number is ->count, and all are good then. */
const ngio_value *ng_pieces_read(const ngio_value *v, const ng_field *f, int32_t parts);
ng_part_piece ng_piece_of(const ngio_value *v, const ng_field *f); /* one of these */

#endif
