/* work.h: the data of one save or load, shared by the files of state/: the list of arrays, memory, one status on all
 * ranks.
 *
 * No rank returns between two collectives: a rank stores its failure in `st` and `message` and continues, until
 * ng_work_agree gives every rank the failure of the first failed rank. */
#ifndef NG_STATE_WORK_H
#define NG_STATE_WORK_H

#include "crc.h"
#include "part_files.h"
#include "safetensors.h"
#include "state/state.h"

/* Keys in the metadata of a file. */
#define NG_MANIFEST "natgrad"
#define NG_MANIFEST_CRC "natgrad.crc32"

/* One array of the state. */
typedef struct ng_item {
  ng_field field;
  const char *name; /* "key/field" */
  /* load: the elements of the array that this rank reads, verified, in published order */
  const void *data;
} ng_item;

/* A piece of an array, which one file has: columns [from, to) of every row; rows [from, to), if by_rows; or, if
 * is_whole, all elements. */
typedef struct ng_part_piece {
  int32_t part; /* index of the file */
  int64_t from, to;
  bool is_whole, by_rows;
  const char *crc; /* checksum: NG_HEX digits */
  bool finite;     /* save: all elements are finite */
} ng_part_piece;

typedef struct ng_work {
  ng_precond *p;
  const char *label;                   /* prefix of messages: the public function, later the file */
  const ng_state_file *file_or_stream; /* NULL: the call has no file or stream */
  bool is_local;                       /* save: collectives do nothing */
  /* this rank is rank 0, or saves or loads without the other ranks */
  bool is_rank0;
  const ng_object_head *last_object; /* the newest object of the model before ng_work_open */
  ngio_out items, names, numbers;    /* memory of `item`, of the names, of `values` */
  ngio_out number_names; /* names of the numbers of all blocks; an empty name ends a block */
  const char *key;       /* ng_work_list_state: name of the block or layer that is visited */
  const ng_block *block; /* ng_work_list_state: the block whose numbers are visited */
  int64_t widths;        /* sum of the element sizes that occur, each of which is a power of two */
  ng_item *item;         /* [fields] wide dtypes first, so that all data in the file are aligned */
  int32_t fields;
  int64_t largest;       /* bytes of the largest array, or row if ranks hold columns */
  int64_t largest_local; /* bytes of the largest unsliced array on this rank */
  int64_t value_count;
  /* [value_count] numbers of all blocks, then a number for each entry; save: then rung counters and seals */
  double *values;
  void *memory;        /* buffer for one array or one row, in the order of memory */
  void *published;     /* buffer for one array, in published order */
  ngio_out out;        /* save: the text of the manifest, with its terminating 0 */
  ngio_json *manifest; /* load: the manifest */
  ngio_writer *writer;
  ngio_source source; /* load, rank 0 */
  ngio_tensors *file; /* load, rank 0 */
  ng_status st;       /* first failure of this rank since the last ng_work_agree */
  char message[NG_MESSAGE];
} ng_work;

/* Wait for the device, and check the arguments, and that no step is in progress.  A stream needs its callback on rank 0 only. */
bool ng_work_open(ng_work *w, ng_precond *p, const char *call, const ng_state_file *at);
/* List the arrays and numbers of the state.  ng_work_list_state only changes `items` to `largest`, so that another thread can
 * read a file at the same time.  Call ng_work_list_state_status afterwards; it stores a failure in *w. */
void ng_work_list_state(ng_work *w);
bool ng_work_list_state_status(ng_work *w);
/* close the file, also after a failure; remove a file that is not complete */
void ng_work_close(ng_work *w);

/* Allocate zeroed memory that ng_work_close frees.  Without memory, return NULL and store the failure in *w. */
void *ng_work_alloc(ng_work *w, int64_t bytes);
void *ng_work_alloc_unset(ng_work *w, int64_t bytes); /* the memory is not set */

/* Return dtype and shape of piece q of an array in its file; q NULL: of the whole array. */
ngio_tensor ng_tensor_describe(const char *name, const ng_field *f, const ng_part_piece *q);
/* Return a text that says how tensor t of a file differs from the expected tensor, or NULL. */
const char *ng_tensor_difference(const ngio_tensor *expected, const ngio_tensor *t);

/* Sum `count` doubles over ranks; broadcast bytes from rank `root`. */
ng_status ng_work_sum(ng_work *w, double *x, int64_t count);
ng_status ng_work_broadcast(ng_work *w, void *buffer, int64_t bytes, int32_t root);
/* Return on all ranks the worst `st` of any rank, with the message of the first failed rank. */
ng_status ng_work_agree(ng_work *w);

/* For an array of which each rank holds some columns or rows.  It is sent row by row; an array of which ranks hold rows
 * counts as one row.
 * ng_work_copy_part: copy this rank's elements of row `row` to w->memory (out), or from w->memory.
 * ng_work_gather_row: gather the row in w->memory on all ranks. */
int64_t ng_work_transfers(const ng_field *f);
void ng_work_copy_part(ng_work *w, const ng_field *f, int64_t row, bool out);
ng_status ng_work_gather_row(ng_work *w, const ng_field *f, int64_t row);

/* Store in *w a failure of io/, which has written the message.  Return whether `st` is a success. */
bool ng_work_check_io(ng_work *w, ngio_status st);
/* Store a failure and its message in *w, if *w has no failure yet.  Return false. */
bool ng_work_fail(ng_work *w, ng_status st, const char *format, ...) NG_PRINTF(3, 4);
ngio_alloc ng_work_data_alloc(ng_work *w); /* the allocator of the context */

enum { NG_HEX = 8 }; /* digits of a checksum */
typedef struct ng_hex {
  char text[12];
} ng_hex;
/* Checksums are the CRC-32 of zlib, which detects damage, not manipulation. */
ng_hex ng_hex_of(uint32_t crc);
/* A seal has a checksum and the flag "all elements are finite" in one double.  Ranks exchange seals in a sum: if all
 * other ranks have 0, the sum is exact. */
double ng_seal(uint32_t crc, bool finite);
ng_hex ng_seal_of(double seal, bool *finite);

/* ---- manifest_write.c, manifest.c ------------------------------------------------------------------------*/

/* The largest count in a file.  Other JSON readers use doubles, which are exact up to 2^53. */
#define NG_COUNT_MOST (INT64_C(1) << 53)
extern const char *const ng_rung_name[NG_RESCUES];
/* Describe a layer, for comparison and for messages. */
void ng_manifest_describe(const ng_entry *e, char text[NG_MESSAGE]);

/* Write the manifest to w->out, with numbers from w->values, up to its tensors. */
bool ng_manifest_begin(ng_work *w, int32_t parts);
/* ng_manifest_tensor: write the entry of an array of a state in one file.
 * ng_manifest_open, ng_manifest_piece: begin the entry of an array of a state in several files, and add a piece to
 * it. */
void ng_manifest_tensor(ngio_out *o, const char *name, const char *crc, bool finite);
void ng_manifest_open(ngio_out *o, const ng_item *item);
void ng_manifest_piece(ngio_out *o, const ng_part_piece *q);
/* Write the end of the manifest (if parts > 1, the number of bytes and tensors of each part), and a terminating 0,
 * which w->out counts. */
bool ng_manifest_end(ng_work *w, const int64_t *bytes, const int64_t *tensors, int32_t parts);

/* The checked content of a manifest. */
typedef struct ng_snapshot {
  ng_options opt;
  int64_t steps, updates, skipped, rung[4];
  int32_t parts; /* number of files */
  double nu, inner;
} ng_snapshot;

/* Compare w->manifest with this model, and fill *s and w->values.  The model does not change. */
bool ng_manifest_read(ng_work *w, ng_snapshot *s);
/* Copy the snapshot and the values into the model. */
void ng_snapshot_apply(ng_precond *p, const ng_snapshot *s, const double *values);

/* Check the list of pieces in `v`, the entry of an array in a manifest of `parts` files.  Return the list, or NULL if
 * it is invalid. */
const ngio_value *ng_pieces_check(const ngio_value *v, const ng_field *f, int32_t parts);
/* Read a piece of this list, or the entry of an array in one file.  If `v` is invalid, `crc` of the result is NULL. */
ng_part_piece ng_piece_of(const ngio_value *v, const ng_field *f);

#endif
