/* bits.h: one case of the program `bits`: its text, the arrays that it gives to the library, and its run.
 *
 * The text of a case is a method, then settings and options that differ from the defaults:
 *
 *     natgrad solver=eigen damping=0.03 ranks=2 threads=3 model=large shown=bf16
 *
 * A word is a setting of the tables below, or an option of the library.  In a value, ';' stands for a blank
 * (skip_layers, own, live). */
#ifndef TESTS_BITS_H
#define TESTS_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "plane.h"
#include "natgrad.h"

enum { BITS_TEXT = 512, BITS_LAYERS = 12 };

/* ---- settings of a run -----------------------------------------------------------------------*/

/* A step K is -1 for never.  Faults of one rank are faults of the last rank. */
#define BITS_NUMBERS(X)                                                                            \
  X(ranks, 1)                                                                                      \
  X(threads, 1)                                                                                    \
  X(steps, 4)                                                                                      \
  X(micro, 1)   /* micro-batches of a step, of different sizes                                  */ \
  X(uses, 1)    /* number of times that a layer runs in one micro-batch */                         \
  X(samples, 4) /* even = 0 adds the rank, the micro-batch, and 1 in odd steps                  */ \
  X(even, 0)                                                                                       \
  X(pad, 0)     /* elements between the rows of every array                                     */ \
  X(declare, 1) /* set ng_layer.positions                                                       */ \
  X(sum, 0)     /* the loss is a sum                                                            */ \
  X(borrow, 0)                                                                                     \
  X(loss_scale, 1)                                                                                 \
  X(grow, 1)  /* factor of the inputs from one step to the next                                 */ \
  X(size, 1)  /* magnitude of inputs */                                                            \
  X(gsize, 1) /* magnitude of output gradients */                                                  \
  X(dsize, 1) /* magnitude of gradients */                                                         \
  X(zero, 0)  /* weights begin as zeros                                                         */ \
  X(lr, 0.1)                                                                                       \
  X(momentum, 0)                                                                                   \
  X(dampening, 0)                                                                                  \
  X(decay, 0)                                                                                      \
  X(nesterov, 0)                                                                                   \
  X(decoupled, 0)                                                                                  \
  X(along, 0)      /* with values = same: fraction of g a' in the gradient of the first layer */   \
  X(nan_input, -1) /* a NaN in step K, in an array of layer nan_layer                           */ \
  X(nan_outgrad, -1)                                                                               \
  X(nan_grad, -1)                                                                                  \
  X(nan_layer, 0)                                                                                  \
  X(reset, -1) /* in step K: observe, call ng_reset_batch, then observe other numbers */           \
  X(miss, -1)  /* the last rank observes nothing in step K                                      */ \
  X(part, -1)  /* the last rank observes the first layer's input only                           */ \
  X(save, -1)  /* before step K: save, and load the file into new objects */                       \
  X(reload, 0) /* number of ranks that load this file; 0: the same number as before */

#define BITS_WORDS(X)                                                                              \
  X(linalg, NULL)                                                                                  \
  X(model, "mix")                                                                                  \
  X(shown, "f32") /* dtype of observations; earlier commits use this name */                       \
  X(grad, "f32")                                                                                   \
  X(weight, "f32")                                                                                 \
  X(layout, "nchw")                                                                                \
  X(order, "samples")                                                                              \
  X(values, "plain") /* same: all samples are equal; zero: inputs are 0; cancel, rows: terms    */ \
                     /* cancel in sums over samples, or over rows and positions                 */ \
  X(own, NULL)       /* options of every second layer                                           */ \
  X(live, NULL)      /* options set before step 2                                               */

typedef struct bits_case {
#define X(name, standard) double name;
  BITS_NUMBERS(X)
#undef X
#define X(name, standard) const char *name;
  BITS_WORDS(X)
#undef X
  ng_options *opt;
  char text[BITS_TEXT]; /* a copy of the text, split into words, to which the values point */
} bits_case;

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof(a)[0]))

static inline bool same_text(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* End the program with the message unless `fine` is true. */
void bits_require(bool fine, const char *what);

/* Parse a case.  Return the status of the library; bits_free in any case. */
ng_status bits_parse(bits_case *c, const char *text);
void bits_free(bits_case *c);

/* ---- arrays of a case (bits_case.c) ----------------------------------------------------------*/

/* `kind` 0 is a tensor of `in` elements. */
typedef struct bits_layer {
  const char *name;
  ng_kind kind;
  int64_t in, out;
  int32_t bias, frozen;
  int64_t positions, kernel[2], stride[2], padding[2], dilation, groups, image[2];
} bits_layer;

const bits_layer *bits_layers_of(const char *name, int32_t *layers);

/* The inputs of the function that defines an array; another input is the step. */
typedef struct bits_array_inputs {
  const bits_case *c;
  const bits_layer *layer;
  int32_t rank;
  bool is_last; /* this rank is the last one, which has the faults */
} bits_array_inputs;

/* A new array: the input or output gradient of layer l in one call, in the dtype of the case. */
plane bits_new_observed(const bits_array_inputs *from, int64_t step, int64_t call, int64_t samples,
                        int32_t l, bool grad);
/* A new array of a parameter; no rows if the layer has no bias. */
plane bits_new_parameter(const bits_array_inputs *from, int32_t l, ng_param which,
                         const char *dtype);
/* Fill with initial weights, or with a gradient, which is the same on every rank. */
void bits_fill_weight(const bits_array_inputs *from, int32_t l, ng_param which, const plane *to);
void bits_fill_gradient(const bits_array_inputs *from, int64_t step, int32_t l, ng_param which,
                        const plane *to);
size_t bits_plane_bytes(const plane *v);

/* ---- run (bits_run.c) ------------------------------------------------------------------------*/

/* Run a case and return the hash of all results.  `trace`: print a line per step. */
uint64_t bits_hash_case(const char *text, bool trace);

#endif
