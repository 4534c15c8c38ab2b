/* t_published_window.c: the published option names of window methods and of the programs around them. */
#include "options_help.h"

/* Of the sparse first-order ones and of the scripts: what a value is here. */
static void arguments_of_sparse_methods(void **state) {
  static const struct {
    const char *method, *name, *value, *option, *reads; /* option NULL: refused */
  } row[] = {{"topk-adam", "betas", "(0.8, 0.99)", "window_momentum", "0.8"},
             {"topk-adam", "betas", "0.8,0.99", "window_forget", "0.99"},
             {"topk-adam", "betas", "0.8", NULL, "two numbers"},
             {"topk-adam", "eps", "1e-4", "damping", "0.0001"},
             {"topk-adam", "amsgrad", "true", NULL, "false"},
             {"topk-sgd", "dampening", "0.5", NULL, "0 or false"},
             {"topk-sgd", "momentum", "0.9", "window_momentum", "0.9"},
             {"topk-sgd", "k_init", "0.05", "window_density", "0.05"},
             {"efcp", "k_init", "300", "window_density", "300"},
             {"sparse-ggt", "k_init", "none", "window_density", "1"},
             {"topk-adagrad", "wd_type", "both", "window_decay_form", "gradient"},
             {"topk-adagrad", "wd_type", "wd", "window_decay_form", "none"},
             {"efcp", "fix", "2", "window_fill", "error"},
             {"efcp", "fix", "4", "window_fill", "added"},
             {"efcp", "fix", "5", NULL, "0 to 4"},
             {"efcp", "fix_scaling", "1", "window_divisor", "filled"},
             {"efcp", "empty_buffer_on_decay", "1", "window_empty", "0.5"},
             {"efcp", "clip_type", "val", "clip", "value"},
             {"efcp", "clip_bound", "0", "clip", "none"},
             {"efcp", "use_bf16", "true", "window_dtype", "bf16"},
             {"efcp", "use_ef", "0", NULL, "cannot be switched off"}};
  (void)state;
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    char text[300] = "", got[64];
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "method", row[i].method, NULL, 0), NG_OK);
    const ng_status st =
        ng_options_set_published(&o, row[i].name, row[i].value, NULL, text, sizeof text);
    if ((st >= NG_OK) != (row[i].option != NULL))
      fail_msg("%s %s: %s", row[i].name, row[i].value, text);
    if (row[i].option == NULL) {
      if (strstr(text, row[i].reads) == NULL || strstr(text, row[i].name) == NULL)
        fail_msg("%s: %s", row[i].name, text);
      continue;
    }
    assert_int_equal(ng_options_get(&o, row[i].option, got, sizeof got), NG_OK);
    assert_string_equal(got, row[i].reads);
  }
}

/* Every argument of EFCP's optimizers and of the programs around them (main.py, the custom section of the FFCV
 * script, the scripts of ASDL and HuggingFace) has a meaning here, or is refused with a reason. */
static void every_argument_of_efcp(void **state) {
  static const char *const names =
      "lr ngrads k_init damp wd_type weight_decay momentum sparse dev gpus topk m use_bf16 "
      "load_random_model step_checkpoint wandb_project wandb_group wandb_name wandb_job_type rank "
      "warmup "
      "model dataset_path dataset_name optim k epochs batch_size shmp_upd_freq shmp_eps ggt_beta1 "
      "ggt_beta2 ggt_eps seed root_folder lr_sched maintain_lr_damp_ratio use_sparse_tensors "
      "use_sparse_cuda profile ignore_checks clip_grad_val "
      "topk_lr_on_update precondition_sparse_grad scale_prec_grad switch_to_sgd swa_start_epoch rt "
      "rt_path rt_epoch rt_type adaptive_damp rescaling_kfac64 use_sq_newton use_ef use_bn_model "
      "dataset width depth augmentation auto_augment cutout label_smoothing damping ema_decay "
      "nesterov curvature_update_interval log_interval num_workers train_size fix folder clip_type "
      "clip_bound ignore_bn_ln_type skip_embeddings fix_scaling damp_rule empty_buffer_on_decay "
      "cancel_grad_clip grad_momentum grad_norm_recovery kd_teacher kd_student kd_alpha kd_temp";
  char list[2000], text[300];
  int32_t left_out = 0, n = 0;
  (void)state;
  (void)snprintf(list, sizeof list, "%s", names);
  for (char *name = strtok(list, " "); name != NULL; name = strtok(NULL, " "), n++) {
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "method", "efcp", NULL, 0), NG_OK);
    const ng_status st = ng_options_set_published(&o, name, "1", NULL, text, sizeof text);
    if (st >= NG_OK) continue;
    const bool known = strstr(text, "has no option") == NULL && strstr(text, name) != NULL;
    if (!known) fail_msg("%s: %s", name, text);
    left_out += strstr(text, "is not supported: ") != NULL;
  }
  assert_true(n > 80 && left_out > 50 && left_out < 70);
}

/* What constructors take for the processor or all there is: None of all, and the empty list of M-FAC. */
static void devices_that_nobody_names(void **state) {
  static const char *const names[][2] = {
      {"mfac", "moddev"}, {"mfac", "optdev"}, {"mfac", "gpus"}, {"efcp", "dev"}, {"efcp", "gpus"}};
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char text[300];
    ng_options o = standard_options();
    assert_int_equal(ng_options_set(&o, "method", names[i][0], NULL, 0), NG_OK);
    assert_int_equal(ng_options_set_published(&o, names[i][1], "None", NULL, NULL, 0), NG_OK);
    assert_int_equal(ng_options_set_published(&o, names[i][1], "[]", NULL, NULL, 0), NG_OK);
    assert_int_equal(ng_options_set_published(&o, names[i][1], "cuda:0", NULL, text, sizeof text),
                     NG_ERR_ABSENT);
    assert_non_null(strstr(text, names[i][1]));
  }
}

/* The same of M-FAC's optimizer and its two scripts, GGT, and EFCP's low-rank classes and their script. */
static void every_argument_of_the_others(void **state) {
  static const struct {
    const char *method, *names;
  } program[] = {
      {"mfac", "lr momentum weight_decay ngrads damp moddev optdev gpus sparse model dataset "
               "dataset_path optim batchsize weightdecay save "
               "checkpoint data prefix adjust_sparsities nworkers nepochs drop_at drop_by pruner "
               "prun_every sparsities ngrads_schedule nrecomps prun_batchsize prun_lrs "
               "blocksize perbatch prunpages prundamp "},
      {"ggt", "lr wd r beta1 beta2 eps"},
      {"sparse-ggt", "k_init lr wd r beta1 beta2 eps"},
      {"lowrank-mfac", "lr momentum weight_decay ngrads num_grads damp rank moddev optdev model "
                       "dataset_path optim batchsize weightdecay save "},
  };
  char list[2000], text[300];
  (void)state;
  for (size_t i = 0; i < sizeof program / sizeof program[0]; i++) {
    (void)snprintf(list, sizeof list, "%s", program[i].names);
    for (char *name = strtok(list, " "); name != NULL; name = strtok(NULL, " ")) {
      ng_options o = standard_options();
      assert_int_equal(ng_options_set(&o, "method", program[i].method, NULL, 0), NG_OK);
      const ng_status st = ng_options_set_published(&o, name, "1", NULL, text, sizeof text);
      if (st < NG_OK && (strstr(text, "has no option") != NULL || strstr(text, name) == NULL))
        fail_msg("%s, %s: %s", program[i].method, name, text);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arguments_of_sparse_methods),
      cmocka_unit_test(every_argument_of_efcp),
      cmocka_unit_test(devices_that_nobody_names),
      cmocka_unit_test(every_argument_of_the_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
