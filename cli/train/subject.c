/* subject.c: read the trained network of a run; subject.h. */
#include "subject.h"
#include "disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_run(const subject_request *r, subject *p) {
  int64_t step = -1;
  int lock = -1;
  char *config = cli_join(r->dir, "config.json");
  int rc = disk_exists(config) ? CLI_OK
                               : cli_fail("%s: expected the folder of a run, but there is no "
                                          "config.json in it",
                                          r->dir);
  if (rc == CLI_OK) rc = disk_lock_folder(r->dir, r->command, &lock);
  if (rc == CLI_OK) rc = checkpoint_find(r->dir, &step, NULL);
  if (rc == CLI_OK && step < 0 && r->weights == NULL)
    rc = cli_fail("%s: there is no checkpoint in it", r->dir);
  if (rc == CLI_OK) rc = settings_read_file(&p->s, config);
  if (rc == CLI_OK && r->data != NULL) rc = settings_set_or_report(&p->s, NULL, "data", r->data);
  if (rc == CLI_OK && step >= 0) p->weights = checkpoint_path(r->dir, step);
  if (lock >= 0) (void)close(lock);
  free(config);
  if (r->batch > 0) p->s.batch = r->batch;
  p->s.acc_iters = 1;
  p->s.mixup_alpha = p->s.erase_rate = p->s.label_smoothing = p->s.dropout = 0.0;
  return rc == CLI_OK ? settings_set_or_report(&p->s, NULL, "augment", "none") : rc;
}

int subject_open(const subject_request *r, subject *p) {
  int threads = 1;
  settings *s = &p->s;
  memset(p, 0, sizeof *p);
  checkpoint_init(&p->state);
  settings_init(s);
  int rc = read_run(r, p);
  if (rc == CLI_OK) rc = cli_read_thread_count(&threads);
  if (rc == CLI_OK && threads > 1) p->pool = ng_pool_create(threads, NULL);
  if (rc == CLI_OK) rc = train_open_data(s, &p->d);
  p->opened = rc == CLI_OK;
  if (rc != CLI_OK) return rc;
  data_print_notes(&p->d);
  rc = train_build_network(s, &p->d, p->pool, &p->net, &p->reconstructs);
  if (rc == CLI_OK) rc = feed_create(s, &p->d, NULL, p->reconstructs, p->pool, &p->feed);
  if (rc == CLI_OK) rc = nn_prepare(p->net, s->batch);
  if (rc == CLI_OK)
    rc = checkpoint_read_model(r->weights != NULL ? r->weights : p->weights, p->net, &p->state);
  ng_context_config config;
  ng_context_config_init(&config, sizeof config);
  config.threads = threads;
  return rc == CLI_OK ? cli_create_context(&config, &p->ctx) : rc;
}

void subject_close(subject *p) {
  ng_context_destroy(&p->ctx);
  feed_free(&p->feed);
  nn_destroy(&p->net);
  if (p->opened) data_close(&p->d);
  ng_pool_destroy(p->pool);
  settings_free(&p->s);
  free(p->weights);
}

int subject_check_output(const char *path) {
  if (disk_exists(path)) return cli_fail("--out: %s exists", path);
  if (checkpoint_is_run_file(path))
    return cli_fail("--out: %s is the name of a file of a run", path);
  char *folder = cli_get_folder(path);
  const int rc = access(folder, W_OK | X_OK) == 0
                     ? CLI_OK
                     : cli_fail("%s: cannot be written: %s", path, strerror(errno));
  free(folder);
  return rc;
}
