/* natgrad.h: precondition the gradients of a neural network with curvature.
 *
 * This header is the reference of the library; a C or C++ trainer includes nothing else.  Options
 * are in docs/options.md, formulas in docs/algorithms.md, programs in examples/.
 *
 * Life of a model
 *
 *   ng_context_create                one per process, rank or training thread
 *   ng_precond_create                select a method and options: "method=eva damping=0.01"
 *   ng_add_layer / ng_add_tensor     describe every layer and every other parameter
 *   ng_bind                          set the addresses of gradients (and weights)
 *   [ng_set_group]                   put parameters into groups, each with its own learning rate
 *   ng_ready                         allocate all memory; nothing is allocated later
 *     each micro-batch:  ng_begin or ng_begin_samples, then for every layer
 *                        ng_observe_input (forward), ng_observe_output_grad (backward)
 *     each step:         ng_step                      precondition all gradients in place
 *                    or  ng_step_sgd / ng_step_adamw  ... and update the weights in the same pass
 *   between steps:   ng_set, ng_freeze, ng_save, ng_load, ng_report_read, ng_explain
 *   ng_precond_destroy, ng_context_destroy
 *
 * Symbols
 *
 *   B   samples of a micro-batch (ng_batch.samples)    S   positions of one sample
 *   a   input of a layer                               g   d(loss) / d(output of the layer)
 *   p   inputs of a layer, + 1 with a bias             q   outputs of a layer
 *   A   [p,p] input factor                             G   [q,q] output-gradient factor
 *   D   [q,p] gradient matrix, bias as last column     PD  preconditioned gradient
 *   nu  clip factor                                    lambda  damping
 *   rho weight of the old running average              W   ranks
 *
 * Function comments have lines Math, Shapes, Units, Memory, Ranks, Threads and Errors.  A line that
 * would only repeat these general rules is left out:
 *
 *   Memory:  arguments are borrowed until the call returns; texts are copied.  Texts that a call
 *            returns belong to the library.  A function that creates an object sets *out to NULL if
 *            it fails; ng_*_destroy accepts NULL and sets the pointer to NULL.
 *   Ranks:   local (no communication).  "Collective": all ranks make the call, in the same order.
 *            "Same on all ranks": ranks are compared; if they differ, ng_ready returns NG_ERR_COMM,
 *            a step NG_ERR_STATE, on all ranks.
 *   Threads: different contexts are independent; a context and its objects are used by one thread
 *            at a time.  Functions without an object may be called from any thread.
 *   Errors:  the status says what remains valid (NG_STATUS_LIST); ng_last_error gives the reason in
 *            one line.  Functions with `message` (`size` bytes or NULL) write the reason there.
 *            Every call may return NG_ERR_ARG (NULL; no such index, name or value; struct_size not
 *            set) and NG_ERR_NOMEM, a collective call NG_ERR_COMM; other errors are listed.
 *            The library never exits, aborts, prints or installs signal handlers.
 *   Lists:   ng_*_count returns the number of items; a function with an index i reads item 0, 1,
 *            ...; NG_ERR_ARG after the last.
 *
 * Structs begin with struct_size, so header and library may have different versions.  Structs with
 * defaults other than 0 have an initialiser, ng_batch_init(&batch, sizeof batch), which sets
 * struct_size and the defaults of the first `size` bytes; it cannot fail and ignores NULL.  All
 * other structs, also those that the library fills, start as zeros with struct_size: in C
 * ng_report r = {.struct_size = sizeof r}.
 *
 * Declarations behind NG_EXPERIMENTAL may change in any version; define that macro before the
 * include to use them.  All other declarations are only extended. */
#ifndef NATGRAD_H
#define NATGRAD_H

#include <stddef.h>
#include <stdint.h>

#define NG_VERSION_MAJOR 0
#define NG_VERSION_MINOR 2
#define NG_VERSION_PATCH 0
#define NG_VERSION (NG_VERSION_MAJOR * 10000 + NG_VERSION_MINOR * 100 + NG_VERSION_PATCH)

#define NG_API __attribute__((visibility("default")))
#define NG_CHECKED __attribute__((warn_unused_result))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Status ------------------------------------------------------------------------------
 * 0: success.  Positive: success, with a note for the log.  Negative: error. */
#define NG_STATUS_LIST(X)                                                                          \
  X(NG_OK, 0, "done")                                                                              \
  X(NG_RESCUED, 1, "done; a block was rescued, or overflowing elements kept their old value")      \
  X(NG_SKIPPED, 2, "a value was not finite; it was not folded, nothing was written; go on")        \
  X(NG_UNOBSERVED, 3, "done; no rank observed a due statistic: its last average was used")         \
  X(NG_ERR_ARG, -1, "bad argument or option; nothing changed")                                     \
  X(NG_ERR_SHAPE, -2, "array does not fit the layer; nothing changed")                             \
  X(NG_ERR_STATE, -3, "call out of order; nothing changed")                                        \
  X(NG_ERR_NOMEM, -4, "no memory; object still usable")                                            \
  X(NG_ERR_ABSENT, -5, "not supported or not built in; nothing changed")                           \
  X(NG_ERR_COMM, -6, "ranks disagree or the transport failed; destroy only")                       \
  X(NG_ERR_DEVICE, -7, "accelerator failed; destroy only")                                         \
  X(NG_ERR_FILE, -8, "file unreadable or damaged; nothing changed")

typedef enum ng_status {
#define NG_X(name, value, meaning) name = value,
  NG_STATUS_LIST(NG_X)
#undef NG_X
} ng_status;

/* Return the name of a status, "NG_ERR_SHAPE", and its meaning, "array does not fit the layer;
 * nothing changed".  Never NULL. */
NG_API const char *ng_status_name(ng_status s);
NG_API const char *ng_status_meaning(ng_status s);

/* ---- 2. Arrays -------------------------------------------------------------------------------*/
/* NG_F16: IEEE binary16; NG_BF16: the upper half of an f32. */
typedef enum ng_dtype { NG_F32 = 1, NG_F64, NG_F16, NG_BF16, NG_I32, NG_I64, NG_U8 } ng_dtype;
typedef enum ng_mem { NG_HOST = 1, NG_DEVICE = 2 } ng_mem;

/* NG_COPY: the library does not read the array after the call.  NG_BORROW: the library may read the
 * array until the next ng_step* or ng_reset_batch returns. */
typedef enum ng_loan { NG_COPY = 1, NG_BORROW = 2 } ng_loan;

/* An array of the caller, with the fields of DLPack's DLTensor (add its byte_offset to `data`).
 * Element (i0, i1, ...) is at data + i0 stride[0] + i1 stride[1] + ... elements.  Any strides are
 * valid: slices, transposed matrices, channels-last images; in an input also 0 (an expanded axis).
 * In an array that the library writes, no two elements share memory and rows do not interleave.
 * Memory:  `data` is aligned for dtype; shape and stride are read during the call only. */
enum { NG_DIMS = 8 };
typedef struct ng_array {
  void *data;
  ng_dtype dtype;
  ng_mem mem;
  int32_t ndim;          /* 0 to NG_DIMS */
  const int64_t *shape;  /* extents, each >= 1; NULL: `room` has extents and strides */
  const int64_t *stride; /* NULL: dense, last axis fastest */
  int64_t room[8];       /* set by the functions below: extents in [0, 4), strides in [4, 8) */
} ng_array;

/* Return an ng_array of host memory: a dense vector [n]; a dense matrix [rows, cols]; a matrix
 * [rows, cols] whose rows are `stride` elements apart; images [n, c, h, w] that are stored in this
 * order; images [n, c, h, w] that are stored in the order [n, h, w, c]. */
NG_API ng_array ng_array_vector(void *data, int64_t n, ng_dtype t);
NG_API ng_array ng_array_matrix(void *data, int64_t rows, int64_t cols, ng_dtype t);
NG_API ng_array ng_array_rows(void *data, int64_t rows, int64_t cols, int64_t stride, ng_dtype t);
NG_API ng_array ng_array_nchw(void *data, int64_t n, int64_t c, int64_t h, int64_t w, ng_dtype t);
NG_API ng_array ng_array_nhwc(void *data, int64_t n, int64_t c, int64_t h, int64_t w, ng_dtype t);

/* Return the bytes of one element, and the name "f32", ...; 0 and "?" for an unknown dtype. */
NG_API int64_t ng_dtype_size(ng_dtype t);
NG_API const char *ng_dtype_name(ng_dtype t);

typedef struct ng_transport ng_transport; /* section 3 */

#if defined(NG_EXPERIMENTAL)
/* ---- 3. Transport: experimental --------------------------------------------------------------
 * A transport is a table of collectives, which are functions of the caller.  One rank needs none;
 * ng_threads is for ranks that are threads, natgrad_mpi.h for MPI.  A function of the table returns
 * NG_OK or an error.  After an error the library calls `abort`, so that no rank waits for this one,
 * and every rank gets NG_ERR_COMM, at the latest in its next step. */
typedef enum ng_coll_kind {
  NG_ALL_REDUCE = 1,     /* recv[i] = sum over ranks of send[i]; `count` elements */
  NG_BROADCAST = 2,      /* recv of every rank = send of rank `root`; `count` elements */
  NG_REDUCE_SCATTER = 3, /* recv of rank r = counts[r] elements of the sum, part r */
  NG_ALL_GATHER = 4      /* rank r sends its part, counts[r] elements; recv = all parts in order */
} ng_coll_kind;

/* One collective.  Every member of the group makes the same calls in the same order. */
typedef struct ng_collective {
  size_t struct_size;
  ng_coll_kind kind;
  ng_dtype dtype; /* f64, f32, bf16, f16: sums are computed in f32 or better; u8: no sums */
  ng_mem mem;
  void *group;           /* handle from group_create; NULL: all ranks */
  int32_t root;          /* broadcast: rank in the whole transport, also if there is a group */
  const void *send;      /* equal to recv, or disjoint; all-gather: may be a part of recv */
  void *recv;            /* in a reduce-scatter it may be a part of send */
  int64_t count;         /* all-reduce, broadcast: number of elements */
  const int64_t *counts; /* reduce-scatter, all-gather: number of elements of each member */
  void *stream; /* device memory: the stream whose work precedes the call; host memory: NULL */
} ng_collective;

struct ng_transport {
  size_t struct_size;
  void *user; /* passed to every callback */
  const char *name;
  int32_t rank, size;
  /* Required: perform `c`, and return when recv is complete. */
  ng_status (*run)(void *user, const ng_collective *c);
  /* All functions below are optional.  Set start and wait together (default: run): start returns
   * at once, wait when recv is complete; until then `c` and its buffers stay valid. */
  ng_status (*start)(void *user, const ng_collective *c, void **request);
  ng_status (*wait)(void *user, void *request);
  /* Set both together.  All ranks call group_create, with the `n` ascending ranks of a group.
   * Required for grad_worker_fraction other than 0 and 1. */
  ng_status (*group_create)(void *user, const int32_t *ranks, int32_t n, void **group);
  void (*group_destroy)(void *user, void *group);
  /* Bit (1 << kind) for each kind that `run` performs; 0: all-reduce and broadcast.  The library
   * builds the other kinds from these two. */
  uint32_t kinds;
  /* Called if this rank fails: make the calls of the other ranks return an error. */
  void (*abort)(void *user);
  /* Needs start and wait; called by the thread that started the request.  Make progress without
   * blocking.  *done = 1: recv is complete, and wait is not called; 0: test or wait is called later. */
  ng_status (*test)(void *user, void *request, int32_t *done);
};

/* Create a group of ranks that are threads of one process.  It adds in the order of ranks: every
 * run gives the same bits.  ng_threads_transport fills the table of one rank, of `size` bytes.
 * Memory:  the group outlives every context that uses it.
 * Threads: create and destroy in one thread; use the table of rank r in the thread of rank r. */
typedef struct ng_threads ng_threads;
NG_API NG_CHECKED ng_status ng_threads_create(int32_t ranks, ng_threads **out);
NG_API NG_CHECKED ng_status ng_threads_transport(ng_threads *group, int32_t rank, ng_transport *out,
                                                 size_t size);
NG_API void ng_threads_destroy(ng_threads **group);
#endif /* NG_EXPERIMENTAL */

/* ---- 4. Context ------------------------------------------------------------------------------*/
typedef struct ng_context ng_context;

typedef enum ng_log_level {
  NG_LOG_NONE = 0,
  NG_LOG_ERROR = 1,
  NG_LOG_WARN = 2,
  NG_LOG_INFO = 3,
  NG_LOG_TRACE = 4
} ng_log_level;

/* Callbacks and settings.  ng_context_config_init sets defaults; every pointer may stay NULL. */
typedef struct ng_context_config {
  size_t struct_size;
  /* Allocator of 64-byte aligned blocks; free gets the size given to alloc.  Set both or none. */
  void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr, size_t bytes);
  void *alloc_user;
  /* Call task(arg, i) for every i in [0, n), in any order.  NULL: a pool of `threads` threads. */
  void (*parallel_for)(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg);
  void *executor_user;
  /* Threads of the library's loops: the caller's thread and threads - 1 of a pool.  0: NG_THREADS
   * of the environment, or one per online processor.  With OpenBLAS, these threads also compute
   * products, each by a BLAS of one thread: openblas_set_num_threads(1) until the product ends, in
   * the whole process.  Factorizations, and any other BLAS, use the threads of BLAS.  Contexts that run at the same time share the processors: set `threads` and
   * OPENBLAS_NUM_THREADS (MKL_NUM_THREADS) of each to its share. */
  int32_t threads;
  /* Receives a line for the log, without newline: "step: n = 12 clip = 0.031".  NULL: no log. */
  void (*log)(void *user, ng_log_level level, const char *line);
  void *log_user;
  ng_log_level log_level; /* most verbose level; the environment variable NG_LOG overrides it */
  const ng_transport *transport; /* the library copies the table; NULL: one rank */
  const char *linalg; /* "cpu", "ref", "cuda", "cuda:INDEX"; NULL: "cpu" if BLAS is built in */
  /* Device stream (cudaStream_t) of all work, which also writes arrays with mem = NG_DEVICE.  For the
   * default stream of CUDA pass cudaStreamLegacy.  NULL: no device, or the library creates a stream; then
   * arrays are NG_HOST (managed or registered memory) and complete before each call. */
  void *queue;
  /* Groups of ranks, copied; NULL: none.  If only some ranks set one, ng_ready: NG_ERR_COMM.
   * Tensor parallelism: ranks of `transport` that work on the same samples and share layers
   * (ng_layer.shard_axis).  Every rank is in one such group; all groups have the same size. */
  const ng_transport *model_group;
  /* Pipeline parallelism: a group with one rank of each stage; `transport` has the ranks of one
   * stage.  All stages have the same options and largest lr.  ng_ready and each step are collective
   * over all stages: nu is summed over their layers, and a step counts in all stages or in none. */
  const ng_transport *stage_group;
  /* Allocator of memory that only the device accesses, such as the caching allocator of a framework:
   * blocks of the device of `linalg`, 256-byte aligned, for work on `queue`.  device_alloc returns
   * NULL if no memory is left.  When all work on a block has finished, device_free gets it with the size
   * passed to device_alloc.  Set both or neither.  Without a device they are not called.  (The host
   * accesses all other memory.) */
  void *(*device_alloc)(void *user, size_t bytes);
  void (*device_free)(void *user, void *ptr, size_t bytes);
  void *device_user;
} ng_context_config;

NG_API void ng_context_config_init(ng_context_config *c, size_t size);

/* Create a context; header_version is NG_VERSION.  config may be NULL: all defaults.
 * Errors:  NG_ERR_ABSENT (linear algebra not built in, a queue without a device); NG_ERR_NOMEM, also
 *          if device_alloc returns NULL; NG_ERR_STATE (header newer than the library). */
NG_API NG_CHECKED ng_status ng_context_create(int32_t header_version,
                                              const ng_context_config *config, char *message,
                                              size_t size, ng_context **out);

/* Destroy a context, after its ng_precond objects.  After fork() the child must not use the
 * parent's context: calls return NG_ERR_STATE.  It may destroy its copy, which frees memory only,
 * and create a new context. */
NG_API void ng_context_destroy(ng_context **ctx);

/* Return the reason of the last failure in one line, or "".  Valid until the next call. */
NG_API const char *ng_last_error(const ng_context *ctx);

/* Return the number of threads of the library's loops; set (each may be NULL) *bytes to the bytes
 * allocated now, *peak to the most bytes so far, *calls to the number of allocations. */
NG_API int32_t ng_context_threads(const ng_context *ctx);
NG_API void ng_context_allocated(const ng_context *ctx, int64_t *bytes, int64_t *peak,
                                 int64_t *calls);

/* ---- 5. Build information ---------------------------------------------------------------------
 * Return NG_VERSION of the library; write lines "key = value\n" (version, commit, compiler, blas,
 * kernel, blas threads, ...) to `text`, cut to `size`, 0-terminated; NULL with size 0 asks for the
 * length.  Return the length of the whole text without its 0. */
NG_API int32_t ng_version(void);
NG_API int32_t ng_build_info(char *text, size_t size);

/* Describe component i: a linear algebra or a transport, built in or missing in this build. */
typedef struct ng_component {
  size_t struct_size;
  const char *kind; /* "linalg" or "transport" */
  const char *name; /* "ref", "cpu", "cuda", "threads" */
  int32_t built_in;
  const char *absent; /* how to get a missing component; "" if built in */
} ng_component;
NG_API NG_CHECKED ng_status ng_component_info(int32_t i, ng_component *out);

/* ---- 6. Options ------------------------------------------------------------------------------
 * docs/options.md and the man page describe every option: name, default, bounds, values, formulas.
 * Lines of options, NG_<NAME> in the environment and --<name> on the command line set the same
 * options.  An ng_options is used by one thread at a time, or by any number of readers. */
typedef struct ng_options ng_options;

/* Create options with the defaults of method "natgrad" and the values of a line (NULL or "": none);
 * copy options; destroy them.  ng_precond_create takes a line directly.
 * Line:    "method=eva damping=0.01 skip_layers='fc1, head 2'": NAME=VALUE, separated by blanks, in
 *          any order; values with blanks in '..' or "..".  A repeated name is an error.
 * Memory:  one allocation of about 15 kB, which no context counts.
 * Errors:  as ng_options_set. */
NG_API NG_CHECKED ng_status ng_options_create(const char *line, char *message, size_t size,
                                              ng_options **out);
NG_API NG_CHECKED ng_status ng_options_copy(const ng_options *o, ng_options **out);
NG_API void ng_options_destroy(ng_options **o);

/* Set one option from text or from a number (real, integer, flag 0 or 1); set all options of a
 * line, or all options found as NG_<NAME> in the environment (NG_METHOD=eva, NG_DAMPING=0.003).
 * `name` may have '-' for '_'; of two calls the last one counts.  "method" takes a name of
 * ng_method_at: options that were never set get the values of its row, so the order of calls has no
 * effect.  Options that the method does not have (ng_option_info.trait) must keep their defaults.
 * Memory:  a free text has at most 4,095 bytes.
 * Errors:  nothing is set: NG_ERR_ARG (unknown name: the message has the nearest; value out of
 *          range: the message has the range), NG_ERR_ABSENT (unsupported value or method). */
NG_API NG_CHECKED ng_status ng_options_set(ng_options *o, const char *name, const char *value,
                                           char *message, size_t size);
NG_API NG_CHECKED ng_status ng_options_set_real(ng_options *o, const char *name, double value,
                                                char *message, size_t size);
NG_API NG_CHECKED ng_status ng_options_set_line(ng_options *o, const char *line, char *message,
                                                size_t size);
NG_API NG_CHECKED ng_status ng_options_from_env(ng_options *o, char *message, size_t size);

/* Get one option as text for ng_options_set, or as a number.
 * Errors:  NG_ERR_ARG (`size` too small; _real: a choice or free text). */
NG_API NG_CHECKED ng_status ng_options_get(const ng_options *o, const char *name, char *value,
                                           size_t size);
NG_API NG_CHECKED ng_status ng_options_get_real(const ng_options *o, const char *name, double *out);

/* Describe environment variable i.  ng_context_create warns in the log about every other variable
 * NG_*, with the nearest name. */
typedef struct ng_variable_info {
  size_t struct_size;
  char name[48];       /* "NG_THREADS", "NG_DAMPING"; last "NG_TEST_*", for the tests */
  const char *meaning; /* one line of text */
} ng_variable_info;
NG_API NG_CHECKED ng_status ng_variable_at(int32_t i, ng_variable_info *out);

/* Check combinations of options, e.g. damping_split = joint needs solver = eigen. */
NG_API NG_CHECKED ng_status ng_options_check(const ng_options *o, char *message, size_t size);

/* If an option has no effect with the present values of the others, write the condition for an
 * effect to `needs` (128 bytes are enough), e.g. "clip = kl" for kl_clip; otherwise write "".  Such
 * an idle option is no error: ng_set or a layer's own options may give it an effect.
 * Errors:  NG_ERR_ARG (`size` too small); then *needs is 0. */
NG_API NG_CHECKED ng_status ng_options_idle(const ng_options *o, const char *option, char *needs,
                                            size_t size);

/* Reset all options to a published program and variant ("KAISA", "eigen"); set one
 * option by its published name, with its meaning in that program (factor_decay weighs the old
 * average in one program, the new sample in another).  *lr (may be NULL) receives the value if the
 * option is the lr argument of ng_step. */
NG_API NG_CHECKED ng_status ng_options_set_system(ng_options *o, const char *system,
                                                  const char *variant, char *message, size_t size);
NG_API NG_CHECKED ng_status ng_options_set_published(ng_options *o, const char *name,
                                                     const char *value, double *lr, char *message,
                                                     size_t size);

typedef enum ng_option_type {
  NG_OPTION_REAL = 1,
  NG_OPTION_INT = 2,
  NG_OPTION_BOOL = 3,
  NG_OPTION_CHOICE = 4,
  NG_OPTION_TEXT = 5
} ng_option_type;

/* Describe row i of three tables: the options, the methods, the published names of a method. */
typedef struct ng_option_info {
  size_t struct_size;
  const char *name, *group;
  ng_option_type type;
  const char *standard; /* default, as text */
  double lower, upper;  /* bounds of real and int, inclusive except lower_open */
  int32_t lower_open;   /* 1: lower itself is excluded */
  const char *choices;  /* "a|b|c" */
  const char *unit, *help;
  const char *test;  /* name of the test in which two values of the option give different results */
  int32_t per_layer; /* 1: allowed in ng_layer.options and per_layer */
  int32_t live;      /* 1: ng_set may change the option after ng_ready */
  const char *trait; /* what a method must have to use the option: "a window", ...; "": nothing */
  const char *needs; /* the option whose value decides if this one has an effect: ng_options_idle */
} ng_option_info;
NG_API int32_t ng_option_count(void);
NG_API NG_CHECKED ng_status ng_option_at(int32_t i, ng_option_info *out);

typedef struct ng_method_info {
  size_t struct_size;
  const char *name, *family, *help, *paper;
  int32_t published; /* number of published names */
  char traits[64];   /* "Kronecker factors, a solve": see ng_option_info.trait */
} ng_method_info;
NG_API int32_t ng_method_count(void);
NG_API NG_CHECKED ng_status ng_method_at(int32_t i, ng_method_info *out);

typedef struct ng_published_info {
  size_t struct_size;
  const char *name;    /* name of the option in the published program */
  const char *option;  /* option of natgrad; "": the lr of ng_step, or no effect */
  const char *meaning; /* how the published value becomes the value of `option` */
} ng_published_info;
NG_API NG_CHECKED ng_status ng_method_published_at(int32_t method, int32_t i,
                                                   ng_published_info *out);

/* ---- 7. A model ------------------------------------------------------------------------------*/
typedef struct ng_precond ng_precond;

/* Create an empty preconditioner from a line of options (see ng_options_create; NULL: defaults), or
 * from options, which are copied.  The environment is not read (ng_options_from_env).
 * Errors:  as ng_options_set; NG_ERR_ARG (an option conflicts with another). */
NG_API NG_CHECKED ng_status ng_precond_create(ng_context *ctx, const char *line, ng_precond **out);
NG_API NG_CHECKED ng_status ng_precond_create_from(ng_context *ctx, const ng_options *options,
                                                   ng_precond **out);
NG_API void ng_precond_destroy(ng_precond **p);

typedef enum ng_kind { NG_LINEAR = 1, NG_CONV2D = 2, NG_NORM = 3, NG_EMBEDDING = 4 } ng_kind;
/* The axis that counts samples: the first of [B,T,F], the second of [T,B,F]. */
typedef enum ng_order { NG_SAMPLES_FIRST = 1, NG_POSITIONS_FIRST = 2 } ng_order;
/* What a norm layer observes: its input, or the normalised input, which gamma multiplies. */
typedef enum ng_norm_input { NG_NORM_RAW = 1, NG_NORM_NORMALISED = 2 } ng_norm_input;
/* A batch norm normalises each channel of the micro-batch; a layer norm the features of each
 * position; a group norm each group of channels of a sample (groups = channels: instance norm). */
typedef enum ng_norm_kind { NG_BATCH_NORM = 1, NG_LAYER_NORM = 2, NG_GROUP_NORM = 3 } ng_norm_kind;
enum { NG_NO_TOKEN = -1 }; /* padding in the input of an embedding */

/* A layer.  ng_layer_init sets defaults; set name, widths, and all fields that differ from them.
 * Shapes:  weight [out, in]; of a convolution [out, in/groups, kernel[0], kernel[1]]; of an
 *          embedding [in, out].  Inputs: see ng_observe_input. */
typedef struct ng_layer {
  size_t struct_size;
  const char *name; /* unique; key in saved state and messages */
  ng_kind kind;
  int64_t in, out;   /* features or channels; of a norm, out is equal to in, or 0 */
  int32_t bias;      /* 1: the layer has a bias; norm: beta */
  int32_t frozen;    /* 1: never read or written, only listed by ng_explain; see also ng_freeze */
  int64_t positions; /* linear: positions per sample; 0: any number */
  ng_order order;    /* NG_SAMPLES_FIRST */
  /* conv2d: [0] vertical, [1] horizontal; defaults 1, 1, 0, 1, one group.  Output size along an
   * axis: floor((image + 2 padding - dilation (kernel - 1) - 1) / stride) + 1. */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t groups; /* at most 4,194,304 */
  /* H, W of the input for which scratch is planned; 0, 0: unknown.  A larger image grows the
   * scratch once; ng_report counts it. */
  int64_t image[2];
  double norm_eps; /* norm: added to the variance; default 1e-5; >= 0 */
  ng_norm_input norm_input;
  /* embedding: `in` tokens, `out` features, no bias.  The input is token numbers 0 to in - 1, or
   * NG_NO_TOKEN for a position without a token, which counts as a position.  A is diagonal: the
   * frequency of each token.  Kronecker and window families only. */
  ng_dtype token_dtype; /* NG_I64; NG_I32 */
  /* tensor parallelism: each rank of model_group holds consecutive outputs (rows of weight and
   * bias) or inputs (columns of the weight, and all of the bias) of a linear layer, in rank order,
   * possibly uneven.  in and out, bindings and observations describe the shard; A, G, PD and the
   * clip belong to the whole layer.  Kronecker family only. */
  int32_t shard_axis;     /* -1: whole; 0: outputs, 1: inputs are sharded */
  void *shard_group;      /* NULL */
  const char *alias_of;   /* layer with the same weights, or NULL; not supported yet */
  const char *options;    /* options of this layer, "damping=0.01", as in the option per_layer */
  ng_norm_kind norm_kind; /* norm; 0: NG_BATCH_NORM */
  int32_t norm_no_weight; /* norm; 1: no gamma; beta is the only parameter */
} ng_layer;
NG_API void ng_layer_init(ng_layer *l, ng_kind kind, size_t size);

/* Register a layer.  *index (may be NULL) receives its index; layers and tensors are numbered
 * together from 0.
 * Errors:  NG_ERR_ARG and NG_ERR_ABSENT name the field; NG_ERR_STATE (after ng_ready). */
NG_API NG_CHECKED ng_status ng_add_layer(ng_precond *p, const ng_layer *layer, int32_t *index);

/* Register a linear layer, a convolution or a norm.  Other fields have their defaults.  Pairs are
 * [vertical, horizontal]; NULL: stride {1, 1}, padding {0, 0}, dilation {1, 1}, image unknown.  A
 * norm has gamma and beta and observes its input; `groups` is 1, except for a group norm. */
NG_API NG_CHECKED ng_status ng_add_linear(ng_precond *p, const char *name, int64_t in, int64_t out,
                                          int32_t bias, int32_t *index);
NG_API NG_CHECKED ng_status ng_add_conv2d(ng_precond *p, const char *name, int64_t in, int64_t out,
                                          const int64_t kernel[2], const int64_t stride[2],
                                          const int64_t padding[2], const int64_t dilation[2],
                                          int64_t groups, const int64_t image[2], int32_t bias,
                                          int32_t *index);
NG_API NG_CHECKED ng_status ng_add_norm(ng_precond *p, const char *name, ng_norm_kind kind,
                                        int64_t in, int64_t groups, double eps, int32_t *index);

/* Register a parameter without curvature.  ng_step leaves its gradient unchanged; ng_step_sgd and
 * ng_step_adamw update it. */
NG_API NG_CHECKED ng_status ng_add_tensor(ng_precond *p, const char *name, int64_t count,
                                          int32_t *index);

/* NG_BOTH: weight and bias; in ng_set_group only. */
typedef enum ng_param { NG_WEIGHT = 0, NG_BIAS = 1, NG_BOTH = 2 } ng_param;

/* How long a binding lasts: NG_HOLD until the next ng_bind of the parameter; NG_ONE_STEP until the
 * next ng_step* returns without an error. */
typedef enum ng_hold { NG_HOLD = 1, NG_ONE_STEP = 2 } ng_hold;

typedef struct ng_binding {
  int32_t index;          /* number of the layer or tensor */
  ng_param param;         /* NG_WEIGHT for a tensor */
  const ng_array *grad;   /* NULL: no change; an array with data NULL: there is no gradient */
  const ng_array *weight; /* NULL: no change */
  ng_hold hold;           /* how long the bindings of grad and weight last */
} ng_binding;

/* Set the addresses of gradients and weights, between steps; ng_bind_grad and ng_bind_weight set
 * one address with NG_HOLD.  If a framework frees an array after each step, bind it with
 * NG_ONE_STEP: a step with an expired binding fails and names the parameter.  If a parameter has no
 * gradient in this step, bind data NULL (option `missing`).
 * Shapes:  weight as in ng_layer, or [out, count / out]; bias [out]; tensors in any shape; any
 *          strides without overlap.  f32, f64, bf16, f16.
 * Memory:  data is read and written in place, for the time that `hold` states.
 * Errors:  NG_ERR_SHAPE; NG_ERR_ABSENT (device memory).  After an error nothing is bound. */
NG_API NG_CHECKED ng_status ng_bind(ng_precond *p, const ng_binding *list, int32_t count);
NG_API NG_CHECKED ng_status ng_bind_grad(ng_precond *p, int32_t index, ng_param which,
                                         const ng_array *grad);
NG_API NG_CHECKED ng_status ng_bind_weight(ng_precond *p, int32_t index, ng_param which,
                                           const ng_array *weight);

/* Freeze (on = 1) or unfreeze (0) a layer or tensor, from the next step on.  A frozen layer needs
 * no gradient or observation and is not clipped; its gradient, weight, moments, averages and
 * inverses do not change.  A window stores zeros for its gradient.
 * Ranks:   same on all ranks.
 * Errors:  NG_ERR_STATE (registered as frozen). */
NG_API NG_CHECKED ng_status ng_freeze(ng_precond *p, int32_t index, int32_t on);

/* Put a parameter into a group (0, the default, to 1023; after ng_ready only a group that existed
 * then).  ng_step_sgd and ng_step_adamw take one struct per group.  A parameter keeps its moments
 * when its group changes.
 * Ranks:   same on all ranks, which only ng_ready and fused steps check. */
NG_API NG_CHECKED ng_status ng_set_group(ng_precond *p, int32_t index, ng_param which,
                                         int32_t group);

/* Plan memory and placement, and allocate (see ng_report).  Nothing is allocated later.
 * Ranks:   collective; compares a hash of layers and options over ranks.
 * Errors:  NG_ERR_STATE (second call; no layer); NG_ERR_ARG (an entry of per_layer matches no
 *          layer); NG_ERR_COMM (ranks differ: the message has the first difference). */
NG_API NG_CHECKED ng_status ng_ready(ng_precond *p);

/* ---- 8. Observe ------------------------------------------------------------------------------*/
typedef enum ng_reduction { NG_MEAN = 1, NG_SUM = 2 } ng_reduction;

typedef struct ng_batch {
  size_t struct_size;
  /* B of this rank; has no valid default.  0: this rank has no samples, but takes part in the
   * collectives; the arrays that it observes are ignored.  It must observe every layer if calls =
   * last, or if `last` is set and the caller uses the same transport before the step. */
  int64_t samples;
  ng_reduction reduction; /* the loss is the mean (default) or the sum over samples */
  /* Factor of the loss in backward; g is divided by it.  Not 0; default 1.  Mixed precision: the
   * scale of the loss.  Accumulated mean losses: samples / all samples of the step (1/m for m
   * even micro-batches).  Both: their product. */
  double loss_scale;
  /* 1: the last micro-batch before a step.  Each layer is observed at most once, and complete sums
   * are sent while other layers are observed. */
  int32_t last;
  /* If ranks share one micro-batch: number of its samples on all ranks; index of this rank's first
   * sample.  The statistics then equal the statistics of one rank with all samples: stat_batch and
   * stat_scale (eva, kaisa, chainerkfac) count all samples, and damping_leak is not divided by the
   * number of ranks.  All micro-batches of a step have the same `whole`.  0 (default): each rank has
   * its own micro-batch, as in the published programs.  Ignored with statistics = local. */
  int64_t whole, first;
} ng_batch;
NG_API void ng_batch_init(ng_batch *b, size_t size);

/* Begin a micro-batch; ng_begin_samples sets only samples and loss_scale.  Sums are weighted by the
 * number of samples: with method "natgrad", micro-batches and ranks of any size give the statistics
 * of the whole batch.  With published methods they depend on the sizes (docs/algorithms.md).
 * Ranks:   `last` and `whole` are the same on all ranks, also if samples = 0 (NG_ERR_COMM if sums
 *          were already sent).  After `last`, ng_observe_* may send, ng_reset_batch is collective.
 * Errors:  NG_ERR_STATE (before ng_ready; after `last` without a step). */
NG_API NG_CHECKED ng_status ng_begin(ng_precond *p, const ng_batch *batch);
NG_API NG_CHECKED ng_status ng_begin_samples(ng_precond *p, int64_t samples, double loss_scale);

/* Return 1 if an observation of this layer has an effect now; else (frozen, not due, ...) 0. */
NG_API int32_t ng_wants(const ng_precond *p, int32_t layer);

/* Observe the input of a layer (forward pass) or its output gradient (backward pass): add to the
 * sums of the layer's statistics.  If ng_wants is 0, the array is not read.
 * Math:    "textbook": A = (1/B) sum_n sum_s a a',  G = (1/(B S)) sum_n sum_s delta delta', with
 *          delta = B g / loss_scale (mean loss) or g / loss_scale (sum); a ends with 1 for a bias.
 *          Other scales: docs/algorithms.md.
 * Shapes:  linear: [B, positions..., features], [positions, B, ..., features] (NG_POSITIONS_FIRST),
 *          or [B S, features]; conv2d: [B, C, H, W], any H, W; embedding: token numbers without the
 *          feature axis (token_dtype); batch and group norm: [B, C, positions...]; layer norm: as
 *          linear.  f32, f64, bf16, f16; any strides.  An f64 value above the largest f32 counts as
 *          not finite, because sums are in f32.
 * Memory:  allocates only if an image is larger than all earlier images.  The array is not read
 *          after the call, except the input of a norm, or with method = ekfac of any layer: it
 *          needs NG_BORROW, and must not change until the output gradient is observed.  If such a
 *          layer is called several times, observe its output gradients in reverse order; at most
 *          8 inputs may wait for their output gradient.
 *          NG_DEVICE: the call does not wait.  Work that follows on ng_context_config.queue may
 *          change or free the array.  (Token numbers and sharded layers: the call waits.)
 * Ranks:   local; for sharded layers collective in the model group.  Every rank observes its shard
 *          in the same order; one rank adds the gathered array; all get the same status.
 * Errors:  NG_SKIPPED: a value is not finite; nothing was added, and the next step leaves gradients
 *          and weights unchanged.  (Rank-one methods test only values that they use.)
 *          NG_DEVICE: NG_OK; the step, or ng_sync, returns NG_SKIPPED and names the layer, if a
 *          value of a sum is not finite.
 *          NG_ERR_SHAPE; NG_ERR_ARG (token out of range, ...); NG_ERR_STATE (no ng_begin; second
 *          observation with `last`); NG_ERR_COMM. */
NG_API NG_CHECKED ng_status ng_observe_input(ng_precond *p, int32_t layer, const ng_array *a,
                                             ng_loan loan);
NG_API NG_CHECKED ng_status ng_observe_output_grad(ng_precond *p, int32_t layer, const ng_array *g,
                                                   ng_loan loan);

/* Drop all observations since the last step.  Collective after ng_batch.last. */
NG_API NG_CHECKED ng_status ng_reset_batch(ng_precond *p);

/* ---- 9. Step ---------------------------------------------------------------------------------*/
/* Precondition every bound gradient in place.
 * Math:    grad = nu PD.  cholesky: PD = (G + l_G I)^-1 D (A + l_A I)^-1, l_G, l_A: damping_split;
 *          eigen, joint: PD = Q_G ((Q_G' D Q_A) / (d_G d_A' + lambda)) Q_A', A = Q_A diag d_A Q_A',
 *          G alike; rank one: PD = (D - c g a') / lambda, c = g' D a / (|a|^2 |g|^2 + lambda).
 * Units:   gradients of the mean loss of the whole step, averaged over ranks, without the scale of
 *          mixed precision.  lr is used by clip = kl only.
 * Ranks:   collective; lr and options are the same on all ranks.  All return the same status.
 * Errors:  of several notes the first of NG_SKIPPED, NG_UNOBSERVED, NG_RESCUED is returned.
 *          NG_SKIPPED: a gradient, an observation or PD of some rank is not finite; the step is not
 *          counted.  NG_RESCUED: a solve used a fallback (ng_report), or elements of a gradient are
 *          unchanged, because their nu PD does not fit the dtype (ng_report.overflowed).
 *          NG_ERR_STATE names a layer that was never observed, or a gradient that is not bound. */
NG_API NG_CHECKED ng_status ng_step(ng_precond *p, double lr);

/* Precondition every gradient and update every bound weight in one pass over memory.  groups[i]
 * has the coefficients of group i of ng_set_group; lr has no default.
 * Math:    d = nu PD, or the gradient of a tensor [+ weight_decay w if not decoupled]
 *          sgd:   v <- momentum v + (1 - dampening) d (first step, or momentum 0: v = d);
 *                 w <- (1 - lr weight_decay if decoupled) w - lr (nesterov ? d + momentum v : v)
 *          adamw: m <- b1 m + (1-b1) d;  s <- b2 s + (1-b2) d^2;  w <- (1 - lr weight_decay) w;
 *                 w <- w - lr (m / (1-b1^t)) / (sqrt(s / (1-b2^t)) + eps)
 *          as torch.optim.SGD and AdamW.  t and "first step" count the updates of the parameter.
 *          clip = kl sums lr^2 <PD, D> with the lr of each layer's weight.
 *          If a new weight, momentum or moment of an element is not finite in its dtype, its old
 *          value stays, each of the three by itself; the element is counted (NG_RESCUED).
 * Shapes:  weights as bound; groups[count].  Momentum and moments are f32; f64 if the weight bound
 *          at ng_ready is f64, which is then updated in double.
 * Ranks:   collective, with the same numbers; otherwise all ranks return an error.
 *          If only some ranks write an element (update_ranks = owner, shards), these ranks return
 *          NG_RESCUED in this step, and all ranks in the next step.
 * Errors:  as ng_step; NG_ERR_ARG names field and group (lr not given; count is not the number of
 *          groups); NG_ERR_STATE (option update names another step; a weight is not bound). */
typedef struct ng_sgd {
  size_t struct_size;
  double lr, momentum, dampening, weight_decay;
  int32_t nesterov, decoupled;
} ng_sgd;
typedef struct ng_adamw {
  size_t struct_size;
  double lr, beta1, beta2, eps, weight_decay;
} ng_adamw;
/* Set defaults of torch.optim: 0; beta1 0.9, beta2 0.999, eps 1e-8, weight_decay 0.01; lr unset. */
NG_API void ng_sgd_init(ng_sgd *s, size_t size);
NG_API void ng_adamw_init(ng_adamw *a, size_t size);
NG_API NG_CHECKED ng_status ng_step_sgd(ng_precond *p, const ng_sgd *groups, int32_t count);
NG_API NG_CHECKED ng_status ng_step_adamw(ng_precond *p, const ng_adamw *groups, int32_t count);

/* Wait until all steps are done, and return the status of steps that no call has returned yet.  With
 * linalg = cuda, a rank-one method and arrays bound as NG_DEVICE, ng_step_sgd and ng_step_adamw do not
 * wait: a later step, or this call, returns their NG_SKIPPED or NG_RESCUED.
 * Errors:  NG_ERR_DEVICE: work of a step failed on the device. */
NG_API NG_CHECKED ng_status ng_sync(ng_precond *p);

/* Change a live option (ng_option_info.live) from the next step on; get the value for that step.
 * Ranks:   same on all ranks.
 * Errors:  NG_ERR_STATE (the option is fixed after ng_ready). */
NG_API NG_CHECKED ng_status ng_set(ng_precond *p, const char *name, const char *value);
NG_API NG_CHECKED ng_status ng_set_real(ng_precond *p, const char *name, double value);
NG_API NG_CHECKED ng_status ng_get(const ng_precond *p, const char *name, char *value, size_t size);

/* ---- 10. Reports ------------------------------------------------------------------------------
 * Units:   ms (wall clock), bytes and rungs of this rank; clip, inner, d2, pd2 and counts of steps
 *          are the same on all ranks.  Counts start at 0 in ng_ready; "saved": part of a state. */
typedef struct ng_report {
  size_t struct_size;
  int64_t steps;   /* number of steps, without skipped steps; saved */
  int64_t skipped; /* number of steps that returned NG_SKIPPED; saved */
  double clip;     /* nu of the last step; clip = ratio, rms: the smallest factor; at first 1 */
  double inner;    /* sum <PD, D> of the last step, before the clip, without lr */
  int64_t more_damping; /* number of solves that used rung 1 to 3: more damping */
  int64_t in_double;    /* number of solves that used rung 4: double precision */
  int64_t kept_last;    /* number of solves that used rung 5: the last good result */
  int64_t plain;        /* number of solves that used rung 6: the plain gradient */
  int32_t stations;     /* number of rows of ng_report_station */
  int64_t kept;         /* layers and tensors without gradient in the last step (missing = keep) */
  int64_t unobserved;   /* statistics that were due, but not observed, summed over steps */
  int32_t statistics;   /* number of rows of ng_report_statistic */
  /* sum ||D||^2 and sum ||PD||^2 of the last step, before the clip; 0 before any step and after
   * loading.  Without blocks, d2, pd2, inner: 0; with quantify = 1: of the fused update, below. */
  double d2, pd2;
  /* quantify = 1: r_i = |PD_i / (D_i + 1e-8)| of the last counted step, before the clip, over the
   * `scaled` elements of all blocks (scaling of EFCP, arXiv 2306.06098).  Quartiles have a relative
   * error of 2^-18.  Without blocks, PD is the direction of the fused update: SGD's momentum with
   * weight decay (Nesterov form), AdamW's m / (sqrt v + eps), bias-corrected.  Otherwise 0. */
  int64_t scaled;
  double scaling_min, scaling_25, scaling_50, scaling_75, scaling_max, scaling_mean;
  double sent_ms, hidden_ms; /* time with messages in progress; the part without waiting */
  int64_t overflowed;        /* number of elements on this rank that kept their old, finite value */
  /* Bytes of this model, by use; their sum is counted by ng_context_allocated. */
  int64_t factors, sums, results, direction, moments, scratch, objects;
  int64_t waits; /* number of times that the host waited for queued work, in the last step */
} ng_report;

typedef struct ng_station_report {
  size_t struct_size;
  /* Station: gradients, check, statistics, solve, share, measure, deliver, agree, emit, weights */
  const char *name;
  int32_t collective;                    /* 1: all ranks take part */
  int64_t runs;                          /* number of steps in which the station ran */
  double last_ms, total_ms;              /* time, with waits for other ranks */
  int64_t last_bytes, total_bytes;       /* bytes of the collectives of this rank in this station */
  int64_t last_messages, total_messages; /* number of these collectives */
  double last_wait_ms, total_wait_ms;    /* time in which the rank only waited for collectives */
  int64_t last_waits; /* number of waits for queued work, as in ng_report.waits */
} ng_station_report;

typedef struct ng_layer_report {
  size_t struct_size;
  const char *name;
  double observe_ms, solve_ms, measure_ms; /* times in the last step that did this work */
  double pi;            /* of the option damping_split, in the last solve on this rank; 0: none */
  double damping_a;     /* added to the diagonal of A in the last solve; 0: none */
  double damping_g;     /* added to the diagonal of G in the last solve; 0: none */
  int32_t rung;         /* 0: no fallback; 1 to 6: see ng_report.more_damping */
  int64_t observations; /* number of arrays read on this rank; saved */
  int64_t kept;         /* number of steps without gradient (missing = keep) */
  int32_t frozen;       /* 1: registered as frozen, or by ng_freeze */
  int64_t unobserved;   /* number of steps with a statistic that was due, but not observed */
  double damping_f;     /* added to the diagonal of a norm block's F; 0: none */
  const char *block, *method; /* as in ng_explain_row */
} ng_layer_report;

/* One statistic of a layer: A, G, F, a_mean, ...  Saved with refresh_tolerance above 0. */
typedef struct ng_statistic_report {
  size_t struct_size;
  const char *layer, *name;
  int64_t refreshed, passed; /* number of steps with a refresh, and without */
  int64_t interval, next;    /* refresh_tolerance > 0: interval, and step of the next refresh */
  int64_t bytes_sent, bytes_passed; /* bytes of sums: sent; not sent, because the sum was stale */
} ng_statistic_report;

NG_API NG_CHECKED ng_status ng_report_read(const ng_precond *p, ng_report *r);
NG_API NG_CHECKED ng_status ng_report_station(const ng_precond *p, int32_t i, ng_station_report *r);
NG_API NG_CHECKED ng_status ng_report_statistic(const ng_precond *p, int32_t i,
                                                ng_statistic_report *r);
NG_API NG_CHECKED ng_status ng_report_layer(const ng_precond *p, int32_t index, ng_layer_report *r);

/* Predict the memory and messages of ranks first to first + count - 1 of `ranks`, before ng_ready.
 * Nothing is allocated or sent, and the model is unchanged.  One call for all ranks is faster than
 * one per rank, except with statistics = sharded or sharded layers.
 * Math:    solve_cost = sum of n^3 over the symmetric statistics of order n that the rank solves;
 *          apply_cost = sum of q p (p + q) over the blocks whose PD it computes.
 * Units:   bytes as in ng_report and ng_report_station, in a step that refreshes all inverses.
 *          With ng_batch.last, messages may differ (by less than 64 bytes per gap between sums).
 * Shapes:  out [count], with the same struct_size in each.
 * Errors:  NG_ERR_ARG (grad_worker_fraction or ng_plan_shard does not fit `ranks`); NG_ERR_STATE
 *          (after ng_ready); NG_ERR_ABSENT (a layer was registered as a shard). */
typedef struct ng_rank_plan {
  size_t struct_size;
  int32_t blocks;  /* blocks of the model */
  int32_t owned;   /* blocks that this rank owns */
  int32_t held;    /* blocks whose PD this rank computes */
  int32_t workers; /* ranks that compute PD of the same block */
  int64_t factors, sums, results, direction, moments, scratch; /* bytes, as in ng_report */
  /* Bytes and messages of each station of ng_report_station; sums_*: station "statistics". */
  int64_t check_bytes, sums_bytes, share_bytes, deliver_bytes, agree_bytes, weights_bytes;
  int64_t sums_messages, share_messages, deliver_messages, weights_messages;
  double solve_cost, apply_cost;
  int64_t scatter_bytes, scatter_messages; /* part of sums_*: in a reduce-scatter */
  int64_t trace_bytes; /* station "solve": one message with traces, if owners of A and G differ */
  int64_t topk_bytes, topk_messages; /* station "statistics": top-k selection of sharded windows */
  int64_t shards_bytes, shards_messages; /* in the model group: the gradients of sharded layers */
  int64_t verdict_bytes;                 /* in the model group: the statuses of one micro-batch */
  int64_t observed_bytes; /* in the model group: the observations of one sample, in f32 */
} ng_rank_plan;
NG_API NG_CHECKED ng_status ng_plan_ranks(ng_precond *p, int32_t ranks, int32_t first,
                                          int32_t count, ng_rank_plan *out);

/* Let ng_plan_ranks treat layer `index`, registered whole, as sharded (shard_axis = axis) over
 * model groups of `members` ranks.  Rank r is member r % members of group r / members.  Shards are
 * as even as possible, the first ones larger by one.  ng_ready rejects such a model: there each
 * rank registers its shard.
 * Errors:  NG_ERR_ARG (not a linear layer registered whole; members < 1, above the layer's outputs
 *          or inputs, or different from another layer's); NG_ERR_STATE (after ng_ready). */
NG_API NG_CHECKED ng_status ng_plan_shard(ng_precond *p, int32_t index, int32_t axis,
                                          int32_t members);

/* How a registered parameter is treated, and why. */
typedef struct ng_explain_row {
  size_t struct_size;
  const char *name;   /* "conv1.weight"; last rows: globs of skip_layers that match no layer */
  int32_t index;      /* number from ng_add_layer or ng_add_tensor; -1: the row is a glob */
  int64_t count;      /* elements */
  int32_t covered;    /* 1: preconditioned */
  const char *family; /* "kronecker", ...; "none" */
  const char *why;    /* "A 27x27, G 64x64", "matches skip_layers", "registered as a tensor", ... */
  int64_t bytes;      /* of the block's curvature here, in the row of its first parameter; else 0 */
  int32_t owner;      /* the rank that solves the block; -1: none */
  const char *block;  /* the layer, "window" or "window.<first layer>", as in messages; "": none */
  const char *method; /* of the layer's own options or of the model; "" without a block */
} ng_explain_row;
NG_API int32_t ng_explain_count(const ng_precond *p);
NG_API NG_CHECKED ng_status ng_explain(const ng_precond *p, int32_t i, ng_explain_row *out);

/* ---- 11. State -------------------------------------------------------------------------------
 * A state is one safetensors file.  Its metadata has a JSON manifest: options, counters, layers and
 * a CRC-32 per tensor.  Tensors are named "layer/field", in the published order (channel, kernel
 * row, kernel column), so any build, rank count or program can read them.
 * Saved:     running averages, inverses, momentum and moments; counters (steps, skipped, rescued);
 *            all options with their present values.
 * Not saved: weights (save them beside the state), gradients, bindings; ng_freeze, ng_set_group;
 *            arguments of steps; times; threads, linear algebra, transport, ranks.
 * Loading:   sets the live options from the file.  All other options must equal the model's,
 *            except placement, grad_worker_fraction and quantify; so must names, order, shapes,
 *            frozen flags and own options of layers.
 * Math:    k steps + save + load + (N-k) steps equal N steps, bit for bit, on the same build, ranks
 *          and threads, with the weights of step k.
 * Ranks:   collective; rank 0 reads and writes the file.  Sharded layers are saved whole: any other
 *          sharding reads them.
 * Errors:  NG_ERR_FILE names the tensor or field.  A failed ng_load changes nothing.  A failed
 *          ng_save leaves an earlier file intact (temporary name, flush, rename).  NG_ERR_STATE
 *          before ng_ready, or between ng_begin and a step. */
NG_API NG_CHECKED ng_status ng_save(ng_precond *p, const char *path);
NG_API NG_CHECKED ng_status ng_load(ng_precond *p, const char *path);

/* Write a state to a stream of the caller, or read it; same bytes as the file.  Data arrives in
 * order, in any sizes; the functions must not call the library.
 *   write  writes all `bytes`; returns 0, or another value on failure (and is not called again)
 *   read   reads at most `bytes` to data and returns their number; 0 at the end; < 0 on failure
 * Memory:  ng_load_from holds one copy of the arrays until all are checked.
 * Ranks:   collective; rank 0 calls the function, other ranks may pass NULL.
 * Errors:  as ng_save and ng_load; NG_ERR_FILE (the function failed, or data follows the state).
 *          The caller discards the output of a failed ng_save_to. */
typedef int32_t (*ng_writer)(void *user, const void *data, int64_t bytes);
typedef int64_t (*ng_reader)(void *user, void *data, int64_t bytes);
NG_API NG_CHECKED ng_status ng_save_to(ng_precond *p, ng_writer write, void *user);
NG_API NG_CHECKED ng_status ng_load_from(ng_precond *p, ng_reader read, void *user);

#if defined(NG_EXPERIMENTAL)
/* Save a state to a stream without the other ranks, for trainers that save on one rank only.  The
 * bytes equal the bytes of ng_save_to; only the counts of rescued solves are of this rank.
 *   write  NULL: write nothing, only check that this rank holds all arrays
 * Ranks:   local.
 * Errors:  as ng_save_to; NG_ERR_STATE names an array that this rank does not hold as a whole. */
NG_API NG_CHECKED ng_status ng_save_local(ng_precond *p, ng_writer write, void *user);

/* Save a state as one file per rank: each rank writes its own arrays, and none is sent.  `path`
 * (rank 0) has the manifest; rank r of n writes PATH.<id>-<r>of<n>, where id is the checksum of the
 * manifest ("natgrad.crc32", 8 digits).  ng_load reads `path` on any number of ranks, with any
 * placement and window slices; arrays are the saved ones, bit for bit.  To rename a state, rename
 * all parts and keep their suffix.
 * Memory:  the manifest, and the largest array (saving) or all arrays (loading) of this rank.
 * Ranks:   collective; same path, in a folder that all ranks can write.  One rank: as ng_save.
 * Errors:  as ng_save and ng_load, with one status and message on all ranks.  The message names a
 *          part that is missing, damaged or of another state.  `path` is renamed last; until then
 *          an earlier state stays intact, even if a rank is killed.  Then the parts of earlier
 *          states of `path` are removed (ng_save removes them, too).  If two jobs save to one
 *          path, one is rejected or the later one wins; states never mix. */
NG_API NG_CHECKED ng_status ng_save_parts(ng_precond *p, const char *path);

typedef struct ng_field_info {
  size_t struct_size;
  const char *name; /* "fc1/A"; valid until the next ng_state_at */
  ng_dtype dtype;
  int32_t ndim;     /* 1: lower triangle of a symmetric matrix, row by row; 2: a matrix */
  int64_t shape[2]; /* elements; 0 beyond ndim */
  int64_t bytes;
  int32_t owner; /* a rank that holds the array; other ranks may hold it, too */
} ng_field_info;

/* Read the arrays of a state one by one, for programs that store them (state_dict).  Arrays 0, 1,
 * ... in this order, with the metadata
 *   __metadata__ = {"natgrad": the manifest, "natgrad.crc32": its CRC-32 (zlib's), 8 hex digits}
 * make a safetensors file that ng_load accepts.
 *   ng_state_count     number of arrays; fixed after ng_ready, same on all ranks; 0 before
 *   ng_state_at        describe array i
 *   ng_state_read      copy its elements, dense, in the published order, to `to`
 *   ng_state_manifest  write the JSON text as ng_build_info; return its length or a negative status
 * Memory:  `to` has exactly `bytes` bytes, aligned for the dtype.
 * Ranks:   local; ng_state_manifest is collective.
 * Errors:  NG_ERR_ARG (wrong `bytes`); NG_ERR_STATE (before ng_ready; between ng_begin and a step;
 *          an array that this rank does not hold, or that ranks hold in slices). */
NG_API int32_t ng_state_count(ng_precond *p);
NG_API NG_CHECKED ng_status ng_state_at(ng_precond *p, int32_t i, ng_field_info *out);
NG_API NG_CHECKED ng_status ng_state_read(ng_precond *p, int32_t i, void *to, int64_t bytes);
NG_API NG_CHECKED int64_t ng_state_manifest(ng_precond *p, char *text, size_t size);

/* Save or load running averages alone, one safetensors file per layer (factor_checkpoint_dir of
 * GPT-NeoX, gpauloski/kfac-pytorch).  A new run, also with other ranks or options, can start with
 * them.  FOLDER/LAYER.safetensors has "A", "G", ... in the published order; its metadata has
 * the layer's name and a CRC-32.  In file names, characters other than letters, digits, '_', '-',
 * '.' (and a leading '.') become %XX.  Statistics without samples and windows are left out.
 *   ng_save_factors   rank 0 creates the folder, each owner writes its layers, atomically
 *   ng_load_factors   sets *layers (may be NULL) to the number of layers found.  Missing folders
 *                     (logged) and files are no error.  The next step solves the loaded averages.
 * Memory:  temporary buffers; loading holds one copy of this rank's averages.
 * Ranks:   collective; the folder is shared.
 * Errors:  NG_ERR_FILE names the file (damaged, other layer, shape or dtype, unreadable): nothing
 *          changed, except files that a failed save had finished.  NG_ERR_STATE (between ng_begin
 *          and a step). */
NG_API NG_CHECKED ng_status ng_save_factors(ng_precond *p, const char *folder);
NG_API NG_CHECKED ng_status ng_load_factors(ng_precond *p, const char *folder, int32_t *layers);

/* ---- 12. Fisher matrix of given gradients: experimental ---------------------------------------
 * The static algorithm of M-FAC (Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356): from m
 * gradients compute products with the inverse, and the diagonal of the inverse, of
 *     F = lambda I + (1/m) sum_r g_r g_r'
 * for the pruning score w_i^2 / (2 [F^-1]_ii).  If blocks > 1, F is cut to diagonal blocks.
 *   ng_fisher_create     end[blocks]: rising ends of blocks, last d; NULL if blocks = 1
 *   ng_fisher_solve      out = F^-1 x; out may be x
 *   ng_fisher_diagonal   out_i = [F^-1]_ii
 *   ng_fisher_destroy    call before ng_context_destroy
 * Math:    in double; relative error about 1e-16 (1 + max |g|^2 / lambda).  Time, for blocks of B
 *          coordinates: m d min(m, B) to create and for the diagonal, d min(m, B) per product.
 * Shapes:  gradients [m, d], f32, contiguous rows; x, out [d].
 * Memory:  gradients: until ng_fisher_destroy; k (k + 1) / 2 doubles a block, k = min(m, B).
 * Errors:  NG_ERR_SHAPE; NG_ERR_ARG (damping <= 0 or too small for double; ends do not rise; a
 *          value is not finite); NG_ERR_ABSENT (k exceeds LAPACK's sizes). */
typedef struct ng_fisher ng_fisher;
NG_API NG_CHECKED ng_status ng_fisher_create(ng_context *ctx, const ng_array *gradients,
                                             double damping, const int64_t *end, int64_t blocks,
                                             ng_fisher **out);
NG_API NG_CHECKED ng_status ng_fisher_solve(ng_fisher *f, const double *x, double *out);
NG_API NG_CHECKED ng_status ng_fisher_diagonal(ng_fisher *f, double *out);
NG_API void ng_fisher_destroy(ng_fisher **fisher);

/* ---- 13. Curvature of a layer: experimental ---------------------------------------------------
 * For influence functions, Laplace approximations and pruning.  K = L (x) R is the curvature of the
 * gradient matrix D of a layer, with symmetric L on its left and R on its right: K D = L D R.
 * L = G and R = A; of an embedding, whose rows are tokens, L = A and R = G.  A convolution with
 * groups has a pair for each group; K is block-diagonal.
 *
 * Factors of a layer, in double and in the published order of its weight, the bias as last column.
 * Shapes:  left [groups, rows, rows], right [groups, cols, cols], row-major; diagonals [groups, n].
 * Memory:  arrays of the caller. */
typedef struct ng_factors {
  size_t struct_size;
  int64_t groups, rows, cols;            /* number of groups; rows of one group; columns */
  int32_t left_diagonal, right_diagonal; /* 1: the array has only the diagonal of each matrix */
  double *left, *right;
} ng_factors;

/* Set the sizes of *f and copy running averages of a layer to f->left and f->right.  If f->left is
 * NULL, only set the sizes.  spatial = factored: right is the product S (x) C / mean diagonal of S.
 * Ranks:   local.
 * Errors:  NG_ERR_ABSENT (the layer has no Kronecker factors); NG_ERR_STATE (before ng_ready; no
 *          average yet; this rank does not have the averages). */
NG_API NG_CHECKED ng_status ng_factors_read(ng_precond *p, int32_t layer, ng_factors *f);

/* The matrix M = (K + lambda I)^power, with the eigenvalues l_i of L and r_j of R:
 *   split "joint" (NULL)  (l_i r_j + lambda)^power, exact
 *         "full"          ((l_i + lambda) (r_j + lambda))^power
 *         "pi"            ((l_i + sqrt(lambda) / pi) (r_j + sqrt(lambda) pi))^power, pi =
 *                         sqrt(mean r_j / mean l_i); Martens & Grosse 2015, section 6.3
 *         "root"          the same with pi = 1
 * Eigenvalues below 0 count as 0.  pi is 1 if a mean is 0. */
typedef struct ng_damped_power {
  size_t struct_size;
  double damping; /* lambda >= 0; in the unit of K */
  double power;   /* any finite number; 0 is the identity */
  const char *split;
} ng_damped_power;

/* Compute eigenvalues and eigenvectors of the factors once; then products, sums and the diagonal of
 * M for any damping and power.
 *   ng_curvature_apply     out_k = M x_k for `count` matrices; out may be x
 *   ng_curvature_diagonal  out = the diagonal of M
 *   ng_curvature_measure   *trace = tr M, *logdet = log det M; either may be NULL.  A singular M has
 *                          logdet = -INFINITY.
 *   ng_curvature_destroy   call before ng_context_destroy
 * Math:    in double on the host.  Time: 9 (rows^3 + cols^3) per group to create, 4 rows cols (rows
 *          + cols) for each x_k.
 * Shapes:  x, out [count, groups, rows, cols]; the diagonal [groups, rows, cols]; contiguous.
 * Memory:  factors are copied.  rows^2 + cols^2 doubles per group, and scratch.
 * Ranks:   local.
 * Errors:  NG_ERR_ARG (a value is not finite; damping < 0; power < 0 and M is singular: nothing is
 *          written); NG_ERR_ABSENT (an order exceeds LAPACK's sizes). */
typedef struct ng_curvature ng_curvature;
NG_API NG_CHECKED ng_status ng_curvature_create(ng_context *ctx, const ng_factors *f,
                                                ng_curvature **out);
NG_API NG_CHECKED ng_status ng_curvature_apply(ng_curvature *c, const ng_damped_power *m,
                                               const double *x, int64_t count, double *out);
NG_API NG_CHECKED ng_status ng_curvature_diagonal(ng_curvature *c, const ng_damped_power *m,
                                                  double *out);
NG_API NG_CHECKED ng_status ng_curvature_measure(ng_curvature *c, const ng_damped_power *m,
                                                 double *trace, double *logdet);

/* Observed arrays of samples: D_n = sum over positions s of left_ns right_ns' is the gradient of
 * sample n.  Linear layer: left is the output gradient, right the input, with a 1 for the bias.
 * Convolution: right has patches (channel, kernel row, kernel column) of the channels of a group.
 * Shapes:  left [samples, positions, groups, rows], right [samples, positions, groups, cols]. */
typedef struct ng_samples {
  size_t struct_size;
  int64_t samples, positions;
  const double *left, *right;
} ng_samples;

/* Add scores: influence of sample j of y on sample i of x, with power = -1.  Call once a layer.
 * Math:    out[i, j] += <D_i, M D_j>;  y NULL: out[i] += <D_i, M D_i> (self-influence).  Koh & Liang
 *          2017 (arXiv 1703.04730), equation 2, without its sign, for the layer-wise K.
 *          D_j of y is never computed: <P, l r'> = l' P r.  D_i of x: one at a time.
 *          Time: 4 rows cols (rows + cols) for each i, 2 rows cols positions for each (i, j).
 * Shapes:  out [x.samples, y.samples], or [x.samples]; y has fewer or more positions than x.
 * Units:   gradients of the loss of one sample, not divided by the number of samples.
 * Errors:  as ng_curvature_apply; out is unchanged. */
NG_API NG_CHECKED ng_status ng_curvature_scores(ng_curvature *c, const ng_damped_power *m,
                                                const ng_samples *x, const ng_samples *y,
                                                double *out);

/* EKFAC: replace the eigenvalues l_i r_j of K by means over samples of the squared elements of D_n in
 * the eigenbases.  Several calls give the mean over the samples of all calls.  Then only split =
 * "joint" is accepted.
 * Math:    v_ij = (1/N) sum_n (u_i' D_n w_j)^2, u_i and w_j the eigenvectors of L and R (George et al.
 *          2018, arXiv 1806.03884).  Time: at most 2 rows cols (positions + rows + cols) each.
 * Units:   gradients of the loss of one sample, not divided by the number of samples.
 * Errors:  as ng_curvature_scores; *c is unchanged. */
NG_API NG_CHECKED ng_status ng_curvature_correct(ng_curvature *c, const ng_samples *x);
NG_API void ng_curvature_destroy(ng_curvature **curvature);
#endif /* NG_EXPERIMENTAL */

#ifdef __cplusplus
}
#endif
#endif /* NATGRAD_H */
