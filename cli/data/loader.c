/* loader.c: a ring of images.  One thread requests samples and takes them in the same order; the other threads decode.
 * Pixels do not depend on the thread that decodes a sample. */
#include "images.h"

#include "common/cli.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef enum state { ASKED, DECODING, GOOD, LEFT_OUT } state;

typedef struct slot {
  const image_list *list;
  int32_t row;
  data_how how;
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
  bool ends;
  int room, decoding;
  int64_t taken, given, asked; /* numbers of samples: taken <= given <= asked <= taken + room */
  slot *slot;                  /* [room]; sample n in slot n mod room */
  uint8_t *bytes;
};

static void *work(void *user) {
  image_loader *l = user;
  (void)pthread_mutex_lock(&l->lock);
  for (;;) {
    while (!l->ends && l->given == l->asked)
      (void)pthread_cond_wait(&l->work, &l->lock);
    if (l->ends) break;
    slot *s = &l->slot[l->given++ % l->room];
    s->state = DECODING;
    l->decoding++;
    (void)pthread_mutex_unlock(&l->lock);
    const bool good = image_load(l->set, s->list, s->row, &s->how, s->bytes, s->why);
    (void)pthread_mutex_lock(&l->lock);
    s->state = good ? GOOD : LEFT_OUT;
    l->decoding--;
    (void)pthread_cond_signal(&l->done);
  }
  (void)pthread_mutex_unlock(&l->lock);
  return NULL;
}

int image_loader_create(const image_set *set, image_loader **out) {
  const int64_t each = set->side * set->side * 3;
  image_loader *l = cli_take(1, sizeof *l);
  *out = NULL;
  l->set = set;
  l->room = set->queue;
  l->slot = cli_take((size_t)l->room, sizeof *l->slot);
  l->bytes = cli_take((size_t)l->room, (size_t)each);
  l->thread = cli_take((size_t)set->threads, sizeof *l->thread);
  for (int i = 0; i < l->room; i++)
    l->slot[i].bytes = l->bytes + i * each;
  (void)pthread_mutex_init(&l->lock, NULL);
  (void)pthread_cond_init(&l->work, NULL);
  (void)pthread_cond_init(&l->done, NULL);
  sigset_t all, before; /* block signals in the new threads: the training thread handles signals */
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  while (l->threads < set->threads && pthread_create(&l->thread[l->threads], NULL, work, l) == 0)
    l->threads++;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (l->threads == 0) {
    image_loader_destroy(&l);
    return cli_bad("--data: images: no decoding thread could be started");
  }
  *out = l;
  return CLI_OK;
}

void image_loader_destroy(image_loader **loader) {
  image_loader *l = *loader;
  if (l == NULL) return;
  (void)pthread_mutex_lock(&l->lock);
  l->ends = true;
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

bool image_loader_ask(image_loader *l, const image_list *list, int32_t row, const data_how *how) {
  (void)pthread_mutex_lock(&l->lock);
  /* One slot is not free: the caller still reads the bytes of the last image_loader_take. */
  const bool fits = l->asked - l->taken < l->room - 1;
  if (fits) {
    slot *s = &l->slot[l->asked++ % l->room];
    s->list = list;
    s->row = row;
    s->how = *how;
    s->state = ASKED;
    (void)pthread_cond_signal(&l->work);
  }
  (void)pthread_mutex_unlock(&l->lock);
  return fits;
}

const uint8_t *image_loader_take(image_loader *l, char why[PICTURE_WHY]) {
  (void)pthread_mutex_lock(&l->lock);
  slot *s = &l->slot[l->taken++ % l->room];
  while (s->state == ASKED || s->state == DECODING)
    (void)pthread_cond_wait(&l->done, &l->lock);
  const bool good = s->state == GOOD;
  (void)pthread_mutex_unlock(&l->lock);
  if (!good) memcpy(why, s->why, PICTURE_WHY);
  return good ? s->bytes : NULL;
}

void image_loader_drop(image_loader *l) {
  (void)pthread_mutex_lock(&l->lock);
  l->given = l->asked; /* no thread starts to decode the requests that remain */
  while (l->decoding > 0)
    (void)pthread_cond_wait(&l->done, &l->lock);
  l->taken = l->asked;
  (void)pthread_mutex_unlock(&l->lock);
}
