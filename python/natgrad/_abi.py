"""Declare the structs, functions and constants of natgrad.h for ctypes.

The texts below are C.  The ctypes types are made from them.  A test compiles the texts together with natgrad.h, and
fails if a declaration differs.
"""
import ctypes as c
import re

VERSION = 200  # NG_VERSION of the natgrad.h that this file repeats

NUMBERS = dict(
    NG_OK=0, NG_RESCUED=1, NG_SKIPPED=2, NG_UNOBSERVED=3, NG_ERR_ARG=-1, NG_ERR_SHAPE=-2, NG_ERR_STATE=-3,
    NG_ERR_NOMEM=-4, NG_ERR_ABSENT=-5, NG_ERR_COMM=-6, NG_ERR_DEVICE=-7, NG_ERR_FILE=-8,
    NG_F32=1, NG_F64=2, NG_F16=3, NG_BF16=4, NG_I32=5, NG_I64=6, NG_U8=7, NG_HOST=1, NG_DEVICE=2, NG_COPY=1, NG_BORROW=2,
    NG_LINEAR=1, NG_CONV2D=2, NG_NORM=3, NG_EMBEDDING=4, NG_NO_TOKEN=-1,
    NG_BATCH_NORM=1, NG_LAYER_NORM=2, NG_GROUP_NORM=3, NG_NORM_NORMALISED=2,
    NG_WEIGHT=0, NG_BIAS=1, NG_BOTH=2, NG_HOLD=1, NG_ONE_STEP=2, NG_MEAN=1, NG_SUM=2,
    NG_ALL_REDUCE=1, NG_BROADCAST=2, NG_LOG_NONE=0, NG_LOG_ERROR=1, NG_LOG_WARN=2, NG_LOG_INFO=3, NG_LOG_TRACE=4,
)
ENUMS = ("ng_status ng_dtype ng_mem ng_loan ng_kind ng_order ng_norm_input ng_norm_kind ng_param ng_hold "
         "ng_reduction ng_coll_kind ng_log_level ng_option_type").split()

STRUCTS = """
ng_array { void *data; ng_dtype dtype; ng_mem mem; int32_t ndim; const int64_t *shape; const int64_t *stride;
  int64_t room[8]; }
ng_collective { size_t struct_size; ng_coll_kind kind; ng_dtype dtype; ng_mem mem; void *group; int32_t root;
  const void *send; void *recv; int64_t count; const int64_t *counts; void *stream; }
ng_transport { size_t struct_size; void *user; const char *name; int32_t rank; int32_t size;
  ng_status (*run)(void *user, const ng_collective *c);
  ng_status (*start)(void *user, const ng_collective *c, void **request);
  ng_status (*wait)(void *user, void *request);
  ng_status (*group_create)(void *user, const int32_t *ranks, int32_t n, void **group);
  void (*group_destroy)(void *user, void *group); uint32_t kinds; void (*abort)(void *user);
  ng_status (*test)(void *user, void *request, int32_t *done); }
ng_context_config { size_t struct_size; void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr, size_t bytes); void *alloc_user;
  void (*parallel_for)(void *user, int32_t n, void (*task)(void *arg, int32_t i), void *arg); void *executor_user;
  int32_t threads; void (*log)(void *user, ng_log_level level, const char *line); void *log_user;
  ng_log_level log_level; const ng_transport *transport; const char *linalg; void *queue;
  const ng_transport *model_group; const ng_transport *stage_group;
  void *(*device_alloc)(void *user, size_t bytes); void (*device_free)(void *user, void *ptr, size_t bytes);
  void *device_user; }
ng_option_info { size_t struct_size; const char *name; const char *group; ng_option_type type; const char *standard;
  double lower; double upper; int32_t lower_open; const char *choices; const char *unit; const char *help;
  const char *test; int32_t per_layer; int32_t live; const char *trait; const char *needs; }
ng_method_info { size_t struct_size; const char *name; const char *family; const char *help; const char *paper;
  int32_t published; char traits[64]; }
ng_published_info { size_t struct_size; const char *name; const char *option; const char *meaning; }
ng_layer { size_t struct_size; const char *name; ng_kind kind; int64_t in; int64_t out; int32_t bias; int32_t frozen;
  int64_t positions; ng_order order; int64_t kernel[2]; int64_t stride[2]; int64_t padding[2]; int64_t dilation[2];
  int64_t groups; int64_t image[2]; double norm_eps; ng_norm_input norm_input; ng_dtype token_dtype;
  int32_t shard_axis; void *shard_group; const char *alias_of; const char *options;
  ng_norm_kind norm_kind; int32_t norm_no_weight; }
ng_binding { int32_t index; ng_param param; const ng_array *grad; const ng_array *weight; ng_hold hold; }
ng_batch { size_t struct_size; int64_t samples; ng_reduction reduction; double loss_scale; int32_t last;
  int64_t whole; int64_t first; }
ng_sgd { size_t struct_size; double lr; double momentum; double dampening; double weight_decay; int32_t nesterov;
  int32_t decoupled; }
ng_adamw { size_t struct_size; double lr; double beta1; double beta2; double eps; double weight_decay; }
ng_report { size_t struct_size; int64_t steps; int64_t skipped; double clip; double inner; int64_t more_damping;
  int64_t in_double; int64_t kept_last; int64_t plain; int32_t stations; int64_t kept; int64_t unobserved;
  int32_t statistics; double d2; double pd2; int64_t scaled; double scaling_min; double scaling_25; double scaling_50;
  double scaling_75; double scaling_max; double scaling_mean; double sent_ms; double hidden_ms; int64_t overflowed;
  int64_t factors; int64_t sums; int64_t results; int64_t direction; int64_t moments; int64_t scratch;
  int64_t objects; int64_t waits; }
ng_station_report { size_t struct_size; const char *name; int32_t collective; int64_t runs; double last_ms;
  double total_ms; int64_t last_bytes; int64_t total_bytes; int64_t last_messages; int64_t total_messages;
  double last_wait_ms; double total_wait_ms; int64_t last_waits; }
ng_layer_report { size_t struct_size; const char *name; double observe_ms; double solve_ms; double measure_ms;
  double pi; double damping_a; double damping_g; int32_t rung; int64_t observations; int64_t kept; int32_t frozen;
  int64_t unobserved; double damping_f; const char *block; const char *method; }
ng_statistic_report { size_t struct_size; const char *layer; const char *name; int64_t refreshed; int64_t passed;
  int64_t interval; int64_t next; int64_t bytes_sent; int64_t bytes_passed; }
ng_field_info { size_t struct_size; const char *name; ng_dtype dtype; int32_t ndim; int64_t shape[2]; int64_t bytes;
  int32_t owner; }
ng_factors { size_t struct_size; int64_t groups; int64_t rows; int64_t cols; int32_t left_diagonal;
  int32_t right_diagonal; double *left; double *right; }
ng_damped_power { size_t struct_size; double damping; double power; const char *split; }
ng_samples { size_t struct_size; int64_t samples; int64_t positions; const double *left; const double *right; }
ng_explain_row { size_t struct_size; const char *name; int32_t index; int64_t count; int32_t covered;
  const char *family; const char *why; int64_t bytes; int32_t owner; const char *block; const char *method; }
"""

CALLS = """
const char *ng_status_name(ng_status s);
int32_t ng_version(void);
int32_t ng_build_info(char *text, size_t size);
ng_status ng_context_create(int32_t header_version, const ng_context_config *config, char *message,
                            size_t message_size, ng_context **out);
void ng_context_destroy(ng_context **ctx);
const char *ng_last_error(const ng_context *ctx);
int32_t ng_context_threads(const ng_context *ctx);
ng_status ng_options_create(const char *line, char *message, size_t message_size, ng_options **out);
void ng_options_destroy(ng_options **o);
ng_status ng_options_set(ng_options *o, const char *name, const char *value, char *message, size_t message_size);
ng_status ng_options_get(const ng_options *o, const char *name, char *value, size_t size);
ng_status ng_options_check(const ng_options *o, char *message, size_t message_size);
ng_status ng_options_set_system(ng_options *o, const char *system, const char *variant, char *message,
                                size_t message_size);
ng_status ng_options_set_published(ng_options *o, const char *name, const char *value, double *lr, char *message,
                                   size_t message_size);
int32_t ng_option_count(void);
ng_status ng_option_at(int32_t i, ng_option_info *out);
int32_t ng_method_count(void);
ng_status ng_method_at(int32_t i, ng_method_info *out);
ng_status ng_method_published_at(int32_t method, int32_t i, ng_published_info *out);
ng_status ng_precond_create_from(ng_context *ctx, const ng_options *options, ng_precond **out);
void ng_precond_destroy(ng_precond **p);
ng_status ng_add_layer(ng_precond *p, const ng_layer *layer, int32_t *index);
ng_status ng_add_tensor(ng_precond *p, const char *name, int64_t count, int32_t *index);
ng_status ng_bind(ng_precond *p, const ng_binding *list, int32_t count);
ng_status ng_freeze(ng_precond *p, int32_t index, int32_t on);
ng_status ng_set_group(ng_precond *p, int32_t index, ng_param which, int32_t group);
ng_status ng_ready(ng_precond *p);
ng_status ng_begin(ng_precond *p, const ng_batch *batch);
int32_t ng_wants(const ng_precond *p, int32_t layer);
ng_status ng_observe_input(ng_precond *p, int32_t layer, const ng_array *a, ng_loan loan);
ng_status ng_observe_output_grad(ng_precond *p, int32_t layer, const ng_array *g, ng_loan loan);
ng_status ng_reset_batch(ng_precond *p);
ng_status ng_step(ng_precond *p, double lr);
ng_status ng_step_sgd(ng_precond *p, const ng_sgd *how, int32_t count);
ng_status ng_step_adamw(ng_precond *p, const ng_adamw *how, int32_t count);
ng_status ng_sync(ng_precond *p);
ng_status ng_set(ng_precond *p, const char *option, const char *value);
ng_status ng_get(const ng_precond *p, const char *option, char *value, size_t size);
ng_status ng_report_read(const ng_precond *p, ng_report *out);
ng_status ng_report_station(const ng_precond *p, int32_t i, ng_station_report *out);
ng_status ng_report_statistic(const ng_precond *p, int32_t i, ng_statistic_report *out);
ng_status ng_report_layer(const ng_precond *p, int32_t index, ng_layer_report *out);
int32_t ng_explain_count(const ng_precond *p);
ng_status ng_explain(const ng_precond *p, int32_t i, ng_explain_row *out);
ng_status ng_save_to(ng_precond *p, ng_writer write, void *user);
ng_status ng_save_local(ng_precond *p, ng_writer write, void *user);
ng_status ng_load_from(ng_precond *p, ng_reader read, void *user);
ng_status ng_save_parts(ng_precond *p, const char *path);
ng_status ng_load(ng_precond *p, const char *path);
int32_t ng_state_count(ng_precond *p);
ng_status ng_state_at(ng_precond *p, int32_t i, ng_field_info *out);
ng_status ng_state_read(ng_precond *p, int32_t i, void *to, int64_t bytes);
ng_status ng_save_factors(ng_precond *p, const char *folder);
ng_status ng_load_factors(ng_precond *p, const char *folder, int32_t *layers);
ng_status ng_factors_read(ng_precond *p, int32_t layer, ng_factors *f);
ng_status ng_curvature_create(ng_context *ctx, const ng_factors *f, ng_curvature **out);
ng_status ng_curvature_apply(ng_curvature *c, const ng_damped_power *m, const double *x, int64_t count, double *out);
ng_status ng_curvature_diagonal(ng_curvature *c, const ng_damped_power *m, double *out);
ng_status ng_curvature_measure(ng_curvature *c, const ng_damped_power *m, double *trace, double *logdet);
ng_status ng_curvature_scores(ng_curvature *c, const ng_damped_power *m, const ng_samples *x, const ng_samples *y,
                              double *out);
ng_status ng_curvature_correct(ng_curvature *c, const ng_samples *x);
void ng_curvature_destroy(ng_curvature **curvature);
"""

_C_TYPES = dict(char=c.c_char, int32_t=c.c_int32, int64_t=c.c_int64, uint32_t=c.c_uint32, size_t=c.c_size_t, double=c.c_double,
                ng_writer=c.c_void_p, ng_reader=c.c_void_p, void=None, **{name: c.c_int for name in ENUMS})


def _ctypes_of(text):
    """Return the ctypes type of a C type.  Every pointer becomes c_void_p, except const char *."""
    words = text.replace("const", "").split()
    if "*" in text:
        return c.c_char_p if text.replace(" ", "") == "constchar*" else c.c_void_p
    return _C_TYPES[words[0]]


def _split_outside_parentheses(text, by):
    """Split a text at each `by` that is not inside parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == by and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _name_and_type(text):
    function = re.match(r"[\w ]+\*?\(\*(\w+)\)\(.*\)$", text, re.S)
    if function:
        return function.group(1), c.c_void_p
    kind, name, extent = re.match(r"(.*?[\s*])(\w+)(\[\d+\])?$", text, re.S).groups()
    return name, _ctypes_of(kind) * int(extent[1:-1]) if extent else _ctypes_of(kind)


def parse_structs():
    """Yield the name of each struct and the C texts of its fields."""
    for name, body in re.findall(r"^(ng_\w+) \{(.*?)\}$", STRUCTS, re.S | re.M):
        yield name, _split_outside_parentheses(body, ";")


def parse_calls():
    """Yield the name of each function, and the C texts of its result and of its arguments."""
    for text in _split_outside_parentheses(CALLS, ";"):
        result, name, arguments = re.match(r"(.*?[\s*])(ng_\w+)\((.*)\)$", text, re.S).groups()
        yield name, result, [] if arguments == "void" else _split_outside_parentheses(arguments, ",")


for _name, _fields in parse_structs():
    globals()[_name] = type(_name, (c.Structure,), {"_fields_": [_name_and_type(text) for text in _fields]})
globals().update(NUMBERS)


# Structs that NAME_init fills with defaults, besides ng_layer; all other structs are initially zero.
INITIALISED = ("ng_context_config", "ng_batch", "ng_sgd", "ng_adamw")


def declare_functions(library):
    """Set the argument and result types of all functions of the loaded library."""
    for name, result, arguments in parse_calls():
        function = getattr(library, name)
        function.restype, function.argtypes = _ctypes_of(result), [_name_and_type(text)[1] for text in arguments]
    for name in INITIALISED:
        function = getattr(library, name + "_init")
        function.restype, function.argtypes = None, [c.c_void_p, c.c_size_t]
    library.ng_layer_init.restype, library.ng_layer_init.argtypes = None, [c.c_void_p, c.c_int, c.c_size_t]
