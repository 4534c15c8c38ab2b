/* work.h: what a call on the state works with, and what ranks say to each other meanwhile; for the
 * files of state/ alone.
 *
 * In:  a model between two steps.
 * Out: its fields in the order of files, memory for the call, one verdict on all ranks.
 *
 * Rank 0 has the file or the stream.  No rank returns between two collectives: an error of rank 0
 * stays in `st` and `message` until ng_work_share sends it, so that every rank can report it. */
#ifndef NG_STATE_WORK_H
#define NG_STATE_WORK_H

#include "safetensors.h"
#include "state/state.h"

/* Keys of the metadata. */
#define NG_MANIFEST "natgrad"
#define NG_MANIFEST_CRC "natgrad.crc32"

typedef struct ng_tensor_name {
  char text[NG_FIELD_KEY];
} ng_tensor_name;

/* One array of the state, as this rank has it. */
typedef struct ng_item {
  ng_field f;
  const char *key, *name; /* the block, or the layer; "key/field", in `names` */
  const ngio_tensor *t;   /* load, rank 0: in the file */
  const char *crc; /* load, rank 0: its checksum, 8 digits of the manifest; NULL: not there */
  const char *why; /* load, rank 0: the mistake in its data */
} ng_item;

typedef struct ng_work {
  ng_precond *p;
  const char *call, *label; /* the public function; what messages call the file                 */
  const ng_outside *place;  /* NULL: nothing is written, and nothing read */
  bool first;               /* this is rank 0 */
  double *values;           /* of the blocks; the rung counters; save: a checksum for each field */
  int64_t value_count;
  ng_item *item;        /* all fields, wide dtypes first: so all data is aligned in the file */
  int32_t fields, room; /* listed; places at `item` */
  int64_t names_bytes;  /* taken at `names` */
  char *names;
  int64_t largest;                   /* bytes of the largest field */
  int64_t doubles;                   /* taken at `values` */
  uint8_t *missing;                  /* save: fields that rank 0 does not hold */
  ngio_tensor *tensor;               /* save */
  void *memory, *published;          /* one field, in the order of memory and of the file */
  ngio_out out;                      /* save: the manifest, with a 0 */
  char *text;                        /* load: the manifest, on its way to the other ranks */
  int64_t text_bytes;                /* with its 0 */
  ngio_json *manifest;               /* load */
  const ngio_value *tensors, *entry; /* load, rank 0: in the manifest; the next expected entry */
  ngio_writer *writer;               /* save, rank 0 */
  ngio_source source;                /* load, rank 0 */
  ngio_tensors *file;                /* load, rank 0 */
  ng_snapshot snapshot;              /* load: what the manifest says */
  ng_status st; /* rank 0: the first failure that the others do not know yet, with its message */
  char message[NG_MESSAGE];
  int32_t at; /* number of the field that a walk is at */
} ng_work;

void ng_work_open(ng_work *w, ng_precond *p, const char *call, const ng_outside *place);
/* Check arguments and allocate before the first collective.  Saving needs more; for parts, buffers and the
 * list of tensors are the caller's to take. */
typedef enum ng_work_for { NG_WORK_LOAD, NG_WORK_SAVE, NG_WORK_PARTS } ng_work_for;
ng_status ng_work_prepare(ng_work *w, ng_work_for what);
void ng_work_close(ng_work *w); /* at any stage; a file that was not finished is taken away */

/* Every field, in the order of files, which is the same on all ranks. */
ng_status ng_work_each(ng_work *w, ng_status (*each)(ng_work *, ng_item *));
/* Every field, by all threads. */
void ng_work_spread(ng_work *w, void (*each)(ng_work *w, int32_t i));
ng_tensor_name ng_tensor_name_of(const char *key, const ng_field *f); /* for any number of ranks */
void ng_tensor_shape(const ng_field *f, int32_t *ndim, int64_t shape[2]); /* as files have it */
ngio_tensor ng_tensor_of(const ng_item *item);                            /* without data */
/* Why the tensor of a file is not this field, or NULL. */
const char *ng_tensor_misfit(const ng_field *f, const ngio_tensor *t);

bool ng_work_take(ng_work *w, void *at, int64_t bytes); /* at: a pointer to a pointer */
void ng_work_give(ng_work *w, void *ptr, int64_t bytes);

/* The doubles are summed over ranks; all may fail with NG_ERR_COMM. */
ng_status ng_work_sum(ng_work *w, double *x, int64_t count);
ng_status ng_work_broadcast(ng_work *w, void *buffer, int64_t bytes, int32_t root);
ng_status ng_work_agree(ng_work *w, ng_status local); /* the worst status of all ranks, on all */
ng_status ng_work_share(ng_work *w); /* what rank 0 found, on all ranks, with its message */
/* What every rank found, each in its `st` and `message`: the worst, with the message of the first that failed.
 * Of `count` doubles the first NG_CODES + ranks are for it; those behind are the caller's, and summed, too. */
ng_status ng_work_tell(ng_work *w, double *told, int64_t count);

/* Row `row` of a field of which ranks hold parts: copy this rank's part between w->memory and the field; gather
 * the row in w->memory on all ranks.  A field sliced by rows counts as one row. */
int64_t ng_work_rows(const ng_field *f);
void ng_work_part(ng_work *w, const ng_field *f, int64_t row, bool out);
ng_status ng_work_row(ng_work *w, const ng_field *f, int64_t row);

/* Rank 0: note a failure of io/, whose messages begin with the label ... */
bool ng_work_fine(ng_work *w, ngio_status st);
/* ... and one of our own. */
bool ng_work_holds(ng_work *w, ng_status st, const char *why);

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

#endif
