/* bits.h: one case of the program `bits`: a line of text, what it shows the library, and its play.
 *
 * A case is a method and what differs from the defaults:
 *
 *     natgrad solver=eigen damping=0.03 ranks=2 threads=3 model=large shown=bf16
 *
 * A word is a setting of the play (the tables below), or else an option of the library; ';' in a
 * value stands for a blank (skip_layers, own, live).  The text is the case's name, too:
 * what differs can be played again by itself.
 */
#ifndef TESTS_BITS_H
#define TESTS_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "plane.h"
#include "natgrad.h"

enum { BITS_TEXT = 512, BITS_LAYERS = 12 };

/* ---- settings of a play ----------------------------------------------------------------------*/

/* A step K is -1 for never.  What concerns one rank concerns the last one. */
#define BITS_NUMBERS(X)                                                                            \
  X(ranks, 1)                                                                                      \
  X(threads, 1)                                                                                    \
  X(steps, 4)                                                                                      \
  X(micro, 1)   /* micro-batches of a step, of different sizes                                  */ \
  X(uses, 1)    /* times that a layer runs in one of them                                       */ \
  X(samples, 4) /* plus the rank, the micro-batch and an odd step's 1; exactly with even = 1    */ \
  X(even, 0)                                                                                       \
  X(pad, 0)     /* numbers between the rows of every array                                      */ \
  X(declare, 1) /* tell ng_layer.positions                                                      */ \
  X(sum, 0)     /* the loss is a sum                                                            */ \
  X(borrow, 0)                                                                                     \
  X(loss_scale, 1)                                                                                 \
  X(grow, 1)  /* inputs are this times larger after each step                                   */ \
  X(size, 1)  /* of inputs                                                                      */ \
  X(gsize, 1) /* of output gradients                                                            */ \
  X(dsize, 1) /* of gradients                                                                   */ \
  X(zero, 0)  /* weights begin as zeros                                                         */ \
  X(lr, 0.1)                                                                                       \
  X(momentum, 0)                                                                                   \
  X(dampening, 0)                                                                                  \
  X(decay, 0)                                                                                      \
  X(nesterov, 0)                                                                                   \
  X(decoupled, 0)                                                                                  \
  X(along,                                                                                         \
    0) /* with values = same: how much of the first layer's gradient is g a'              */       \
  X(nan_input, -1) /* a NaN in step K, in what belongs to layer nan_layer                       */ \
  X(nan_outgrad, -1)                                                                               \
  X(nan_grad, -1)                                                                                  \
  X(nan_layer, 0)                                                                                  \
  X(reset, -1) /* observations of step K are forgotten, and others made                         */ \
  X(miss, -1)  /* the last rank observes nothing in step K                                      */ \
  X(part, -1)  /* the last rank observes the first layer's input only                           */ \
  X(save, -1)  /* before step K: save, and go on from the file with fresh objects ...           */ \
  X(reload, 0) /* ... on so many ranks; 0: as before                                            */

#define BITS_WORDS(X)                                                                              \
  X(linalg, NULL)                                                                                  \
  X(model, "mix")                                                                                  \
  X(shown, "f32") /* dtype of observations                                                      */ \
  X(grad, "f32")                                                                                   \
  X(weight, "f32")                                                                                 \
  X(layout, "nchw")                                                                                \
  X(order, "samples")                                                                              \
  X(values, "plain") /* same: all samples alike; zero: inputs; cancel, rows: sums over samples, */ \
                     /* or over rows and positions, lose their digits                           */ \
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
  char text[BITS_TEXT]; /* the case, cut up: values point into it */
} bits_case;

#define COUNT(a) ((int32_t)(sizeof(a) / sizeof(a)[0]))

static inline bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* Ends the program, saying what is missing. */
void bits_need(bool fine, const char *what);

/* What the play does not know ends the program; what the library does not is its status.  Given back
 * by bits_drop in any case. */
ng_status bits_read(bits_case *c, const char *text);
void bits_drop(bits_case *c);

/* ---- what the library is shown (bits_case.c) --------------------------------------------------*/

/* `kind` 0 is a plain tensor of `in`. */
typedef struct bits_layer {
  const char *name;
  ng_kind kind;
  int64_t in, out;
  int32_t bias, frozen;
  int64_t positions, kernel[2], stride[2], padding[2], dilation, groups, image[2];
} bits_layer;

const bits_layer *bits_model(const char *name, int32_t *layers);

/* Who looks: what is shown depends on the step and on this. */
typedef struct bits_eye {
  const bits_case *c;
  const bits_layer *layer;
  int32_t rank;
  bool last; /* of the ranks: the one to which things happen */
} bits_eye;

/* What layer l sees in one call, as a new array of the case's dtype. */
plane bits_seen(const bits_eye *e, int64_t step, int64_t call, int64_t samples, int32_t l,
                bool grad);
/* Arrays of a parameter, empty without a bias; how a weight begins; a gradient, the same on every
 * rank. */
plane bits_parameter(const bits_eye *e, int32_t l, ng_param which, const char *dtype);
void bits_weight(const bits_eye *e, int32_t l, ng_param which, const plane *to);
void bits_grad(const bits_eye *e, int64_t step, int32_t l, ng_param which, const plane *to);
size_t bits_bytes(const plane *v);

/* ---- what it makes of it (bits_play.c) --------------------------------------------------------*/

/* Hash of every bit that came out.  With `trace` what happened is printed, step by step. */
uint64_t bits_play(const char *text, bool trace);

#endif
