/* factors.c: save and load the running averages only: a folder with one file for each layer.
 *
 * As in the GPT-NeoX preconditioner of gpauloski/kfac-pytorch, each owner writes and reads the files of its layers, and
 * missing files are skipped.  Unlike there, all owners check all files before the first average changes. */
#include "state/work.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LAYER "natgrad.layer" /* keys in the metadata of a file */
#define CRC "natgrad.crc32"
static const char suffix[] = ".safetensors";
enum {
  NAME_LIMIT = 255 - 13,                /* bytes; the writer's temporary name has 13 bytes more */
  NAME_BUFFER = 3 * 255 + sizeof suffix /* three bytes for each byte of a layer's name */
};

typedef struct factors {
  ng_work w;
  double *found; /* [blocks] bit i: statistic i is in the file; a double, to be summed over ranks */
  const char *folder;
  char *path; /* FOLDER/NAME.safetensors */
  int64_t path_size;
  char *gathered; /* buffer for arrays of a block that other ranks own */
  ng_field *field;
  ngio_tensor *tensor;
  ngio_tensors **file; /* [blocks] load: the files that this rank has read */
} factors;

/* Return the rank that reads and writes the file of a block: the owner of the block's first statistic. */
static int32_t file_owner(const ng_block *b) { return b->stats > 0 ? b->stat[0].owner : b->owner; }
/* Return whether this rank must get the array from another rank to write the file. */
static bool is_gathered(const ng_block *b, const ng_field *f) {
  return b->owners_differ && f->owner != file_owner(b);
}

/* ---- names -----------------------------------------------------------------------------------*/

typedef struct file_name {
  char text[NAME_BUFFER];
} file_name;

static bool is_plain(unsigned char c, bool first) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || c == '_' || c == '-' || (c == '.' && !first);
}

/* Return the file name of a block.  Different blocks have different file names, which every file system accepts: other
 * bytes than letters, digits, '_', '-' and '.' become %XX. */
static file_name file_name_of(const ng_block *b) {
  static const char digit[] = "0123456789ABCDEF";
  file_name n = {.text = ""};
  char *at = n.text;
  for (const char *c = b->name; *c != 0; c++) {
    const unsigned char u = (unsigned char)*c;
    if (is_plain(u, c == b->name)) {
      *at++ = *c;
      continue;
    }
    *at++ = '%';
    *at++ = digit[u >> 4];
    *at++ = digit[u & 15];
  }
  memcpy(at, suffix, sizeof suffix);
  return n;
}

static void set_path(factors *x, const ng_block *b) {
  const file_name n = file_name_of(b);
  (void)snprintf(x->path, (size_t)x->path_size, "%s/%s", x->folder, n.text);
  x->w.label = x->path;
}

/* ---- opening and closing ---------------------------------------------------------------------*/

/* List the averages of the statistics in the set `started`, wide dtypes first, as files require.  Return their
 * number. */
static int32_t list_fields(factors *x, const ng_block *b, uint64_t started) {
  int32_t n = 0;
  for (int64_t width = NG_WIDEST; width > 0; width /= 2) {
    for (int32_t i = 0; i < b->stats; i++) {
      const ng_stat *s = &b->stat[i];
      const bool take = s->rule.averaged && (started >> i & 1) != 0;
      for (int32_t k = 0; k < s->parts && take && ng_dtype_size(s->average_dtype) == width; k++) {
        x->field[n++] = ng_average_field(s, k, false);
      }
    }
  }
  return n;
}

static bool check_names(factors *x) {
  ng_work *w = &x->w;
  if (x->folder == NULL || x->folder[0] == 0) {
    return ng_work_fail(w, NG_ERR_ARG, "no folder given");
  }
  for (int32_t i = 0; i < w->p->blocks; i++) {
    const file_name n = file_name_of(w->p->block[i]);
    if (strlen(n.text) <= NAME_LIMIT) continue;
    return ng_work_fail(
        w, NG_ERR_ARG,
        "layer '%.40s...': its file name would have %zu characters, at most %d are possible",
        w->p->block[i]->name, strlen(n.text), (int)NAME_LIMIT);
  }
  return true;
}

static void prepare_factors(factors *x, ng_precond *p, const char *call, const char *folder) {
  ng_work *w = &x->w;
  int64_t
      arrays = 0,
      /* largest number of arrays of a block; largest number of bytes of a block with several owners */
      gathered = 0;
  x->folder = folder;
  if (!ng_work_open(w, p, call, NULL) || !check_names(x)) return;
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    int64_t n = 0, all = 0;
    for (int32_t k = 0; k < b->stats; k++) {
      const ng_stat *s = &b->stat[k];
      n += s->parts;
      for (int32_t j = 0; j < s->parts; j++) {
        const int64_t bytes = ng_stat_part_count(s, &s->part[j]) * ng_dtype_size(s->average_dtype);
        w->largest = ng_max64(w->largest, bytes);
        all += bytes;
      }
    }
    arrays = ng_max64(arrays, n);
    if (b->owners_differ) gathered = ng_max64(gathered, all);
  }
  x->path_size = (int64_t)strlen(folder) + 1 + (int64_t)sizeof(file_name);
  x->path = ng_work_alloc(w, x->path_size);
  x->field = ng_work_alloc(w, arrays * (int64_t)sizeof *x->field);
  x->tensor = ng_work_alloc(w, arrays * (int64_t)sizeof *x->tensor);
  x->gathered = ng_work_alloc_unset(w, gathered);
  w->memory = ng_work_alloc_unset(w, w->largest);
  w->published = ng_work_alloc(w, w->largest);
  x->found = ng_work_alloc(w, p->blocks * (int64_t)sizeof *x->found);
  x->file = ng_work_alloc(w, p->blocks * (int64_t)sizeof(ngio_tensors *));
}

static void close_factors(factors *x) {
  for (int32_t i = 0; i < x->w.p->blocks && x->file != NULL; i++)
    ngio_tensors_close(&x->file[i]);
  ng_work_close(&x->w);
}

/* ---- save ------------------------------------------------------------------------------------*/

/* Create the folder and its parents; called on rank 0. */
static void make_folder(factors *x) {
  ng_work *w = &x->w;
  struct stat at;
  (void)snprintf(x->path, (size_t)x->path_size, "%s", x->folder);
  for (char *c = x->path + 1; w->st == NG_OK; c++) {
    const char end = *c;
    if (end != '/' && end != 0) continue;
    *c = 0;
    if (mkdir(x->path, 0777) != 0 && (stat(x->path, &at) != 0 || !S_ISDIR(at.st_mode))) {
      (void)ng_work_fail(w, NG_ERR_FILE, "cannot make the folder '%s': %s", x->path,
                         strerror(errno));
    }
    *c = end;
    if (end == 0) return;
  }
}

/* Set x->found to the statistics whose averages contain samples.  The owner of a statistic decides, because other ranks
 * do not know whether it folded the sum. */
static ng_status find_started(factors *x) {
  const ng_precond *p = x->w.p;
  for (int32_t i = 0; i < p->blocks; i++) {
    double bit = 1.0;
    for (int32_t k = 0; k < p->block[i]->stats; k++, bit *= 2.0) {
      const ng_stat *s = &p->block[i]->stat[k];
      if (s->owner == p->ctx->rank && s->started) x->found[i] += bit;
    }
  }
  return ng_work_sum(&x->w, x->found, p->blocks);
}

/* Gather the n arrays of the block on the rank that writes its file.  Collective, so it is called also after a failure
 * of this rank. */
static ng_status gather_block(factors *x, const ng_block *b, int32_t n) {
  char *to = x->gathered;
  ng_status st = NG_OK;
  for (int32_t i = 0; i < n && st == NG_OK; i++) {
    ng_field *f = &x->field[i];
    if (!is_gathered(b, f)) continue;
    const int64_t bytes = ng_field_bytes(f);
    if (f->owner == b->ctx->rank) memcpy(to, f->data, (size_t)bytes);
    st = ng_work_broadcast(&x->w, to, bytes, f->owner);
    f->data = to;
    to += bytes;
  }
  return st;
}

static void save_block(factors *x, const ng_block *b, int32_t n) {
  ng_work *w = &x->w;
  uint32_t crc = 0;
  if (n == 0) return;
  set_path(x, b);
  for (int32_t i = 0; i < n; i++) {
    const ng_field *f = &x->field[i];
    x->tensor[i] = ng_tensor_describe(f->name, f, NULL);
    crc = ng_crc32(crc, ng_field_published(f, w->published), (size_t)ng_field_bytes(f));
  }
  const ng_hex hex = ng_hex_of(crc);
  const ngio_text text[2] = {{LAYER, b->name}, {CRC, hex.text}};
  char *why = w->message;
  bool ok = ng_work_check_io(
      w, ngio_writer_create(x->path, x->tensor, n, text, 2, &w->writer, why, sizeof w->message));
  for (int32_t i = 0; i < n && ok; i++) {
    const ng_field *f = &x->field[i];
    ok = ng_work_check_io(w, ngio_writer_put(w->writer, ng_field_published(f, w->published),
                                             ng_field_bytes(f), why, sizeof w->message));
  }
  if (ok) (void)ng_work_check_io(w, ngio_writer_finish(&w->writer, why, sizeof w->message));
}

ng_status ng_state_save_factors(ng_precond *p, const char *folder) {
  factors x = {.file = NULL};
  ng_status st = NG_OK;
  prepare_factors(&x, p, "ng_save_factors", folder);
  NG_TRY(ng_work_agree(&x.w));
  if (x.w.is_rank0) make_folder(&x);
  NG_TRY(ng_work_agree(&x.w));
  NG_TRY(find_started(&x));
  for (int32_t i = 0; i < p->blocks; i++) {
    const ng_block *b = p->block[i];
    const int32_t n = list_fields(&x, b, (uint64_t)x.found[i]);
    NG_TRY(gather_block(&x, b, n));
    if (file_owner(b) == p->ctx->rank && x.w.st == NG_OK) save_block(&x, b, n);
  }
  NG_TRY(ng_work_agree(&x.w));
  ng_log(p->ctx, NG_LOG_INFO, "factors: saved = %s", folder);
done:
  close_factors(&x);
  return st;
}

/* ---- load ------------------------------------------------------------------------------------*/

/* Return the text of an error in tensor t of a file, which has array f, or NULL. */
static const char *find_error(const ng_field *f, const ngio_tensor *t) {
  const ngio_tensor expected = ng_tensor_describe(f->name, f, NULL);
  const char *why = ng_tensor_difference(&expected, t);
  return why != NULL ? why : ng_field_error(f, t->data, ng_field_count(f));
}

/* Find the parts of a statistic in a file, which must have all or none.  Return their number, or -1 after an error. */
static int32_t match_fields(factors *x, const ng_stat *s, const ngio_tensors *file) {
  int32_t n = 0;
  for (int32_t k = 0; k < s->parts; k++) {
    const ng_field f = ng_average_field(s, k, false);
    const ngio_tensor *t = ngio_tensors_find(file, f.name);
    const char *why = t == NULL ? n > 0 ? "is missing" : NULL : find_error(&f, t);
    if (why == NULL && t != NULL && n < k)
      why = "exists, but earlier parts of its statistic are missing";
    if (why != NULL) {
      (void)ng_work_fail(&x->w, NG_ERR_FILE, "tensor '%s' %s", f.name, why);
      return -1;
    }
    n += t != NULL;
  }
  return n;
}

/* Check the file of a block: the name of the layer, the checksum over all arrays, their names and shapes.  Set *found
 * to the set of its statistics. */
static bool check_file(factors *x, const ng_block *b, double *found) {
  ng_work *w = &x->w;
  const ngio_tensors *file = x->file[b->index];
  const char *layer = ngio_tensors_text(file, LAYER), *crc = ngio_tensors_text(file, CRC);
  int32_t known = 0;
  uint32_t sum = 0;
  double bit = 1.0;
  if (layer == NULL || crc == NULL || ngio_tensors_text_count(file) != 2) {
    return ng_work_fail(w, NG_ERR_FILE, "is a safetensors file without factors of natgrad");
  }
  if (!ng_is(layer, b->name)) {
    return ng_work_fail(w, NG_ERR_FILE, "has factors of another layer");
  }
  for (int32_t i = 0; i < ngio_tensors_count(file); i++) {
    const ngio_tensor *t = ngio_tensors_at(file, i);
    sum = ng_crc32(sum, t->data, (size_t)t->bytes);
  }
  if (!ng_is(crc, ng_hex_of(sum).text)) {
    return ng_work_fail(w, NG_ERR_FILE, "is damaged (its checksum differs)");
  }
  for (int32_t i = 0; i < b->stats; i++, bit *= 2.0) {
    const int32_t n = b->stat[i].rule.averaged ? match_fields(x, &b->stat[i], file) : 0;
    if (n < 0) return false;
    known += n;
    *found += n > 0 ? bit : 0.0;
  }
  return (known == ngio_tensors_count(file) && known > 0) ||
         ng_work_fail(w, NG_ERR_FILE, "has tensors that this layer lacks");
}

/* Read and check all files of this rank. */
static void read_files(factors *x) {
  ng_work *w = &x->w;
  ng_precond *p = w->p;
  const ngio_alloc alloc = ng_work_data_alloc(w);
  struct stat at;
  for (int32_t i = 0; i < p->blocks && w->st == NG_OK; i++) {
    const ng_block *b = p->block[i];
    if (file_owner(b) != p->ctx->rank) continue;
    set_path(x, b);
    if (stat(x->path, &at) != 0 && errno == ENOENT) continue;
    if (ng_work_check_io(
            w, ngio_tensors_read(x->path, &alloc, &x->file[i], w->message, sizeof w->message))) {
      (void)check_file(x, b, &x->found[i]);
    }
  }
}

/* Read an array from the file, send it to the ranks that store it, and set the average. */
static ng_status store_average(factors *x, ng_block *b, const ng_field *f) {
  const bool mine = file_owner(b) == b->ctx->rank;
  if (mine) {
    const ngio_tensor *t = ngio_tensors_find(x->file[b->index], f->name);
    ng_field_import(f, t->data, x->w.memory);
  }
  if (b->averages_everywhere || is_gathered(b, f)) {
    const ng_status st = ng_work_broadcast(&x->w, x->w.memory, ng_field_bytes(f), file_owner(b));
    if (st != NG_OK) return st;
  }
  if (f->data != NULL) memcpy(f->data, x->w.memory, (size_t)ng_field_bytes(f));
  return NG_OK;
}

/* Set the averages of a block on every rank that stores them, and mark the statistics as observed. */
static ng_status store_block(factors *x, ng_block *b, double found) {
  ng_status st = NG_OK;
  uint64_t bits = (uint64_t)found;
  if (bits == 0) return NG_OK;
  for (int32_t i = 0; i < b->stats && st == NG_OK; i++, bits >>= 1) {
    ng_stat *s = &b->stat[i];
    if ((bits & 1) == 0) continue;
    for (int32_t k = 0; k < s->parts && st == NG_OK; k++) {
      const ng_field f = ng_average_field(s, k, false);
      st = store_average(x, b, &f);
    }
    if (s->shift != NULL) memset(s->shift, 0, (size_t)s->groups * sizeof *s->shift);
    s->started = true;
    for (int kind = 0; kind < NG_OBSERVED_KINDS; kind++) {
      if (ng_stat_uses(s, ng_observed_bit(kind))) b->was_observed[kind] = true;
    }
  }
  if (b->solves) b->was_solved = false;
  return st;
}

/* Set *exists on all ranks to whether rank 0 finds the folder. */
static ng_status find_folder(factors *x, bool *exists) {
  ng_work *w = &x->w;
  struct stat at;
  double found = w->is_rank0 && stat(x->folder, &at) == 0;
  if (w->is_rank0 && found == 0.0 && errno != ENOENT) {
    (void)ng_work_fail(w, NG_ERR_FILE, "'%s': %s", x->folder, strerror(errno));
  } else if (w->is_rank0 && found > 0.0 && !S_ISDIR(at.st_mode)) {
    (void)ng_work_fail(w, NG_ERR_FILE, "'%s' is not a folder", x->folder);
  }
  ng_status st = ng_work_agree(w);
  if (st == NG_OK) st = ng_work_broadcast(w, &found, (int64_t)sizeof found, 0);
  *exists = found > 0.0;
  return st;
}

ng_status ng_state_load_factors(ng_precond *p, const char *folder, int32_t *layers) {
  factors x = {.file = NULL};
  bool exists = false;
  int32_t count = 0;
  ng_status st = NG_OK;
  prepare_factors(&x, p, "ng_load_factors", folder);
  NG_TRY(ng_work_agree(&x.w));
  NG_TRY(find_folder(&x, &exists));
  if (exists) {
    read_files(&x);
    NG_TRY(ng_work_agree(&x.w));
    NG_TRY(ng_work_sum(&x.w, x.found, p->blocks));
    /* the checks have passed, so from here on only the transport can fail */
    for (int32_t i = 0; i < p->blocks; i++) {
      NG_TRY(store_block(&x, p->block[i], x.found[i]));
      count += x.found[i] > 0.0;
    }
    ng_log(p->ctx, NG_LOG_INFO, "factors: loaded = %s layers = %d", folder, count);
  } else {
    ng_log(p->ctx, NG_LOG_WARN, "factors: folder '%s' does not exist: nothing was loaded", folder);
  }
  if (layers != NULL) *layers = count;
done:
  close_factors(&x);
  return st;
}
