/* parts.h: a state in several files, one for each rank that saved it (part_files.h); for the files of state/ alone.
 *
 *   PATH                   rank 0's arrays, and the manifest of all: format 3
 *   PATH.<id>-<r>of<n>     arrays of rank r; <id>: the checksum of the manifest, 8 digits
 *
 * In the manifest an array has its whole shape and its pieces, and the list of parts what each file holds:
 *   "tensors": {"fc1/A": {"shape": [64], "pieces": [{"part": 1, "crc32": "89abcdef", "finite": true}]}, ...}
 *   "parts": [{"bytes": 1024, "tensors": 3}, ...]
 * A piece that is not all of an array has columns [from, to) of every row, or rows [from_row, to_row).
 *
 * In:  a model, a path.
 * Out: how pieces are written and read. */
#ifndef NG_STATE_PARTS_H
#define NG_STATE_PARTS_H

#include "part_files.h"
#include "state/work.h"

typedef struct ng_part_piece {
  int32_t part;
  int64_t from, to; /* columns, or rows; all columns where the array is whole */
  bool whole, by_rows;
  const char *crc;
  bool finite;
} ng_part_piece;

int64_t ng_part_room(const char *path); /* of the name of any part, with a 0 */

/* The entry of an array: begin, its pieces, end. */
void ng_pieces_begin(ngio_out *o, const ng_item *item);
void ng_pieces_put(ngio_out *o, const ng_part_piece *q);
void ng_pieces_end(ngio_out *o);
/* Behind all entries; with a 0, which is counted. */
void ng_parts_end(ngio_out *o, const int64_t *bytes, const int64_t *tensors, int32_t parts);

/* The pieces of an array of this model, in `v` of a manifest of `parts`; NULL: not as they should be.  Their number
 * is ->count, and all are good then. */
const ngio_value *ng_pieces_read(const ngio_value *v, const ng_field *f, int32_t parts);
ng_part_piece ng_part_piece_of(const ngio_value *v, const ng_field *f); /* one of these */
ng_rect ng_part_piece_rect(const ng_part_piece *q,
                           const ng_field *f); /* not of a symmetric array */
/* Dtype and shape that a piece has in its file. */
ngio_tensor ng_part_piece_tensor(const ng_item *item, const ng_part_piece *q);

/* Called when all ranks know the manifest: every rank reads its pieces; then all ranks apply them, or none. */
ng_status ng_parts_load(ng_work *w);

#endif
