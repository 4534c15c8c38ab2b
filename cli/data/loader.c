/* loader.c: decode images in advance, in a ring of slots. One thread requests samples and takes them in the same order;
 * other threads decode. The pixels of a sample do not depend on the thread that decodes it. */
#include "images.h"

#include "common/cli.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef enum state { REQUESTED, DECODING, DECODED, UNREADABLE } state;

typedef struct slot {
  const image_list *list;
  int32_t row;
  data_transform how;
  state state;
  char why[PICTURE_WHY];
  uint8_t *bytes;
} slot;

struct image_loader {
  const image_set *set;
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  pthread_t *thread;
  int threads;
  bool stops;
  int size, decoding;
  int64_t taken, started, requested; /* counts: taken <= started <= requested <= taken + size */
  slot *slot;                        /* [size]; request n uses slot n mod size */
  uint8_t *bytes;
};

static void *run_decoding_thread(void *user) {
  image_loader *l = user;
  (void)pthread_mutex_lock(&l->lock);
  for (;;) {
    while (!l->stops && l->started == l->requested)
      (void)pthread_cond_wait(&l->work, &l->lock);
    if (l->stops) break;
    slot *s = &l->slot[l->started++ % l->size];
    s->state = DECODING;
    l->decoding++;
    (void)pthread_mutex_unlock(&l->lock);
    const bool good = image_decode(l->set, s->list, s->row, &s->how, s->bytes, s->why);
    (void)pthread_mutex_lock(&l->lock);
    s->state = good ? DECODED : UNREADABLE;
    l->decoding--;
    (void)pthread_cond_signal(&l->done);
  }
  (void)pthread_mutex_unlock(&l->lock);
  return NULL;
}

int image_loader_create(const image_set *set, image_loader **out) {
  const int64_t each = set->side * set->side * 3;
  image_loader *l = cli_alloc(1, sizeof *l);
  *out = NULL;
  l->set = set;
  l->size = set->queue;
  l->slot = cli_alloc((size_t)l->size, sizeof *l->slot);
  l->bytes = cli_alloc((size_t)l->size, (size_t)each);
  l->thread = cli_alloc((size_t)set->threads, sizeof *l->thread);
  for (int i = 0; i < l->size; i++)
    l->slot[i].bytes = l->bytes + i * each;
  (void)pthread_mutex_init(&l->lock, NULL);
  (void)pthread_cond_init(&l->work, NULL);
  (void)pthread_cond_init(&l->done, NULL);
  /* block all signals in the new threads, because the training thread handles them */
  sigset_t all, before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  while (l->threads < set->threads &&
         pthread_create(&l->thread[l->threads], NULL, run_decoding_thread, l) == 0)
    l->threads++;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (l->threads == 0) {
    image_loader_destroy(&l);
    return cli_fail("--data: images: no decoding thread could be started");
  }
  *out = l;
  return CLI_OK;
}

void image_loader_destroy(image_loader **loader) {
  image_loader *l = *loader;
  if (l == NULL) return;
  (void)pthread_mutex_lock(&l->lock);
  l->stops = true;
  (void)pthread_cond_broadcast(&l->work);
  (void)pthread_mutex_unlock(&l->lock);
  for (int i = 0; i < l->threads; i++)
    (void)pthread_join(l->thread[i], NULL);
  (void)pthread_cond_destroy(&l->work);
  (void)pthread_cond_destroy(&l->done);
  (void)pthread_mutex_destroy(&l->lock);
  free(l->thread);
  free(l->slot);
  free(l->bytes);
  free(l);
  *loader = NULL;
}

bool image_loader_request(image_loader *l, const image_list *list, int32_t row,
                          const data_transform *how) {
  (void)pthread_mutex_lock(&l->lock);
  /* The slot of the last image_loader_take is not free: the caller still reads its bytes. */
  const bool fits = l->requested - l->taken < l->size - 1;
  if (fits) {
    slot *s = &l->slot[l->requested++ % l->size];
    s->list = list;
    s->row = row;
    s->how = *how;
    s->state = REQUESTED;
    (void)pthread_cond_signal(&l->work);
  }
  (void)pthread_mutex_unlock(&l->lock);
  return fits;
}

const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]) {
  (void)pthread_mutex_lock(&l->lock);
  slot *s = &l->slot[l->taken++ % l->size];
  while (s->state == REQUESTED || s->state == DECODING)
    (void)pthread_cond_wait(&l->done, &l->lock);
  const bool good = s->state == DECODED;
  (void)pthread_mutex_unlock(&l->lock);
  if (!good) memcpy(why, s->why, PICTURE_WHY);
  return good ? s->bytes : NULL;
}

void image_loader_cancel(image_loader *l) {
  (void)pthread_mutex_lock(&l->lock);
  /* mark the requests that no thread has started as started, so that the threads skip them */
  l->started = l->requested;
  while (l->decoding > 0)
    (void)pthread_cond_wait(&l->done, &l->lock);
  l->taken = l->requested;
  (void)pthread_mutex_unlock(&l->lock);
}
