/* methods.c: the table of methods (a family, and the option values that differ from the defaults), and the table of
 * published programs and their variants.  CONTRIBUTING.md, recipe 2, tells how to add a method. */
#include "option/option.h"

/* ---- rows of values --------------------------------------------------------------------------*/

#define SET(name, value)                                                                           \
  { NG_OPTION_##name, value }

static const ng_option_setting no_values[] = {NG_VALUES_END};

/* Most published programs do not precondition norm layers: norm_block = none. */

/* KAISA: gpauloski/kfac-pytorch 0.4.2. */
static const ng_option_setting kaisa_values[] = {SET(solver, NG_SOLVER_EIGEN_PREDIV),
                                                 SET(damping, 0.001),
                                                 SET(damping_split, NG_SPLIT_JOINT),
                                                 SET(stat_start, NG_START_IDENTITY),
                                                 SET(stat_scale, NG_SCALE_KAISA),
                                                 SET(solve_period, 1),
                                                 SET(norm_block, NG_NORM_NONE),
                                                 SET(spatial, NG_SPATIAL_FULL),
                                                 SET(gradient_rows, 0),
                                                 SET(placement, NG_PLACEMENT_KAISA),
                                                 NG_VALUES_END};
/* This variant adds the whole damping to a copy of each factor. */
const ng_option_setting ng_kaisa_inverse[] = {SET(solver, NG_SOLVER_CHOLESKY),
                                              SET(damping_split, NG_SPLIT_FULL), NG_VALUES_END};

/* MPD-KFAC and DP-KFAC: lzhangbv/kfac_pytorch.  Its factor_decay, 0.95, is the weight of the new sample, so the old
 * average has stat_decay = 0.05. */
#define MPD_VALUES                                                                                 \
  SET(solver, NG_SOLVER_EIGEN), SET(eigen_floor, 1e-10), SET(damping, 0.001),                      \
      SET(damping_split, NG_SPLIT_JOINT), SET(stat_decay, 0.05),                                   \
      SET(stat_start, NG_START_IDENTITY), SET(stat_scale, NG_SCALE_MPD_KFAC),                      \
      SET(positions, NG_POSITIONS_REDUCE), SET(calls, NG_CALLS_LAST), SET(solve_period, 1),        \
      SET(norm_block, NG_NORM_NONE), SET(spatial, NG_SPATIAL_FULL), SET(gradient_rows, 0)
static const ng_option_setting mpd_values[] = {MPD_VALUES, SET(placement, NG_PLACEMENT_MPD_KFAC),
                                               NG_VALUES_END};
/* DP-KFAC sends neither statistics nor inverses. */
static const ng_option_setting dp_values[] = {
    MPD_VALUES, SET(statistics, NG_STATISTICS_LOCAL), SET(grad_worker_fraction, 0),
    SET(placement, NG_PLACEMENT_ROUND_ROBIN), NG_VALUES_END};
/* The published inverse class adds the damping to the running average itself (damping_leak) and sends preconditioned
 * gradients instead of inverses; one rank solves A and G of a layer. */
static const ng_option_setting lz_inverse[] = {SET(solver, NG_SOLVER_CHOLESKY),
                                               SET(eigen_floor, 0),
                                               SET(damping_split, NG_SPLIT_PI),
                                               SET(damping_leak, NG_LEAK_OWNER),
                                               SET(grad_worker_fraction, 0),
                                               SET(placement, NG_PLACEMENT_ROUND_ROBIN),
                                               NG_VALUES_END};
/* Eva and FusedEva: lzhangbv/eva, ffhh927/fused_eva.  They average the first 16 samples of each rank and update the
 * running average at each call of a layer; factor_decay is again the weight of the new sample. */
#define EVA_VALUES                                                                                 \
  SET(damping, 0.03), SET(stat_decay, 0.05), SET(stat_scale, NG_SCALE_EVA), SET(stat_batch, 16),   \
      SET(calls, NG_CALLS_EMA), SET(norm_block, NG_NORM_NONE)
static const ng_option_setting eva_values[] = {EVA_VALUES, NG_VALUES_END};
static const ng_option_setting eva_f_values[] = {EVA_VALUES, SET(sides, NG_SIDES_INPUT),
                                                 NG_VALUES_END};
/* The K-FAC of lzhangbv/eva averages positions first; every rank solves all factors and adds the damping.  SAM of the
 * same program multiplies by the undamped factors of this K-FAC. */
#define EVA_FACTORS                                                                                \
  SET(stat_decay, 0.05), SET(stat_scale, NG_SCALE_KAISA), SET(positions, NG_POSITIONS_REDUCE),     \
      SET(stat_batch, 16), SET(calls, NG_CALLS_EMA), SET(solve_period, 1),                         \
      SET(spatial, NG_SPATIAL_FULL), SET(gradient_rows, 0)
#define NO_CLIP_NO_NORMS SET(clip, NG_CLIP_NONE), SET(norm_block, NG_NORM_NONE)
static const ng_option_setting eva_kfac_values[] = {EVA_FACTORS, SET(damping, 0.03),
                                                    SET(damping_leak, NG_LEAK_ALL),
                                                    SET(norm_block, NG_NORM_NONE), NG_VALUES_END};
static const ng_option_setting sam_values[] = {EVA_FACTORS, SET(solver, NG_SOLVER_PRODUCT),
                                               SET(radius, 0.01), NO_CLIP_NO_NORMS, NG_VALUES_END};
static const ng_option_setting adasgd_values[] = {SET(sides, NG_SIDES_NONE), SET(damping, 0.03),
                                                  NO_CLIP_NO_NORMS, NG_VALUES_END};

/* M-FAC: the optimizer of IST-DASLab/M-FAC.  GGT: IST-DASLab/EFCP. */
static const ng_option_setting mfac_values[] = {SET(window, 1024), SET(damping, 1e-5),
                                                NO_CLIP_NO_NORMS, NG_VALUES_END};
#define GGT_VALUES                                                                                 \
  SET(window, 100), SET(window_function, NG_WINDOW_GGT), SET(damping, 1e-5), NO_CLIP_NO_NORMS
static const ng_option_setting ggt_values[] = {
    GGT_VALUES, SET(window_momentum_form, NG_MOMENTUM_GRADIENT), NG_VALUES_END};

/* SP-NGD: Osawa et al., arXiv 2002.06015; as its program, chainerkfac, it solves in each step.  chainerkfac differs
 * from the paper: F of a norm layer is one matrix instead of 2x2 blocks, the running average includes the damping, and
 * all micro-batches and ranks have the same weight. */
static const ng_option_setting spngd_values[] = {SET(damping, 0.03),
                                                 SET(stat_decay, 0.01),
                                                 SET(solve_period, 1),
                                                 SET(clip, NG_CLIP_NONE),
                                                 SET(norm_damping, 16),
                                                 SET(spatial, NG_SPATIAL_FULL),
                                                 SET(gradient_rows, 0),
                                                 SET(statistics, NG_STATISTICS_OWNER),
                                                 SET(grad_worker_fraction, 0),
                                                 SET(placement, NG_PLACEMENT_SPNGD),
                                                 NG_VALUES_END};
static const ng_option_setting chainerkfac_values[] = {
    SET(norm_block, NG_NORM_FULL), SET(damping_leak, NG_LEAK_OWNER),
    SET(stat_scale, NG_SCALE_CHAINERKFAC), NG_VALUES_END};

/* IST-DASLab/EFCP: sparse M-FAC (variant: dense M-FAC), sparse GGT, low-rank M-FAC. */
static const ng_option_setting efcp_values[] = {SET(window, 1024),
                                                SET(damping, 1e-6),
                                                SET(window_momentum_form, NG_MOMENTUM_HEAVY_BALL),
                                                SET(window_decay_form, NG_DECAY_NONE),
                                                SET(window_store, NG_STORE_TOPK),
                                                NO_CLIP_NO_NORMS,
                                                NG_VALUES_END};
static const ng_option_setting efcp_dense[] = {SET(window_store, NG_STORE_DENSE), NG_VALUES_END};
static const ng_option_setting sparse_ggt_values[] = {GGT_VALUES, SET(window_store, NG_STORE_TOPK),
                                                      NG_VALUES_END};
static const ng_option_setting lowrank_values[] = {SET(window, 1024), SET(damping, 1e-5),
                                                   SET(window_store, NG_STORE_LOWRANK),
                                                   NO_CLIP_NO_NORMS, NG_VALUES_END};

/* The sparse first-order methods with which EFCP is compared. */
#define TOPK_VALUES SET(window, 1), SET(window_store, NG_STORE_TOPK), NO_CLIP_NO_NORMS
static const ng_option_setting topk_sgd_values[] = {
    TOPK_VALUES, SET(window_function, NG_WINDOW_STEP),
    SET(window_momentum_form, NG_MOMENTUM_HEAVY_BALL), SET(window_feedback_lr, 1), NG_VALUES_END};
static const ng_option_setting topk_adam_values[] = {TOPK_VALUES,
                                                     SET(window_function, NG_WINDOW_ADAM),
                                                     SET(window_momentum, 0.9),
                                                     SET(window_forget, 0.999),
                                                     SET(damping, 1e-8),
                                                     SET(window_feedback_lr, 1),
                                                     NG_VALUES_END};
static const ng_option_setting topk_adagrad_values[] = {
    TOPK_VALUES, SET(window_function, NG_WINDOW_ADAGRAD), SET(damping, 1e-10), NG_VALUES_END};

/* KellerJordan/Muon and torch.optim.Muon of PyTorch 2.13, in f32; their Adam has the learning rate of a group of its own. The
 * owner of a weight computes PD and sends it. */
#define MUON_VALUES NO_CLIP_NO_NORMS, SET(grad_worker_fraction, 0)
static const ng_option_setting muon_values[] = {MUON_VALUES,
                                                SET(muon_scale, NG_MUON_AXES),
                                                SET(muon_norm, NG_MUON_SUM),
                                                SET(second_decay, 0.95),
                                                SET(moment_epsilon, 1e-10),
                                                SET(adam_lr, 0.015),
                                                NG_VALUES_END};
static const ng_option_setting torch_muon_values[] = {MUON_VALUES, NG_VALUES_END};
/* Ours, after Du & Su 2026, whose damping is 0.2; Muon as torch.optim.Muon. */
static const ng_option_setting newton_muon_values[] = {
    MUON_VALUES, SET(damping, 1), SET(spatial, NG_SPATIAL_FULL), NG_VALUES_END};
static const ng_option_setting adam_values[] = {NO_CLIP_NO_NORMS, NG_VALUES_END};

/* Adam in the eigenbases of A and G. */
static const ng_option_setting kfac_adam_values[] = {
    SET(solver, NG_SOLVER_EIGEN), SET(damping, 1e-4), SET(stat_decay, 0.9), SET(solve_period, 1),
    SET(second_decay, 0.95),      NO_CLIP_NO_NORMS,   NG_VALUES_END};

/* EKFAC of George et al. 2018. Every rank measures second moments in the eigenbases, so every rank stores them. */
static const ng_option_setting ekfac_values[] = {SET(solver, NG_SOLVER_EIGEN),
                                                 SET(damping_split, NG_SPLIT_JOINT),
                                                 SET(spatial, NG_SPATIAL_FULL), NG_VALUES_END};

/* Both programs measure second moments of all data in a second pass. */
static const ng_option_setting ekfac_published[] = {NO_CLIP_NO_NORMS, SET(stat_decay, 0),
                                                    NG_VALUES_END};

/* nikhilvyas/SOAP. The owner of a block computes its matrices and directions. */
#define SOAP_VALUES                                                                                \
  SET(stat_decay, 0.95), SET(stat_start, NG_START_ZERO), SET(first_decay, 0.95),                   \
      SET(second_decay, 0.95), SET(decay_after, 1), SET(grad_worker_fraction, 0), NO_CLIP_NO_NORMS
static const ng_option_setting soap_values[] = {SOAP_VALUES, NG_VALUES_END};
/* Ours: a new basis in every step. */
static const ng_option_setting soap_natgrad_values[] = {
    SOAP_VALUES, SET(solve_period, 1), SET(basis_moments, NG_BASIS_ROTATE), NG_VALUES_END};

/* facebookresearch/optimizers. L is a sum over steps; the owner of a block computes its matrices and directions. */
static const ng_option_setting shampoo_values[] = {SET(stat_decay, 1),
                                                   SET(stat_start, NG_START_ZERO),
                                                   SET(damping, 1e-12),
                                                   SET(moment_epsilon, 1e-10),
                                                   SET(solve_period, 1),
                                                   SET(max_axis, 1024),
                                                   SET(merge_axes, NG_MERGE_RIGHT),
                                                   SET(grad_worker_fraction, 0),
                                                   NO_CLIP_NO_NORMS,
                                                   NG_VALUES_END};

/* Ours, after Lin et al. 2025, who refresh eigenbases by QR. */
static const ng_option_setting kl_shampoo_values[] = {SET(gram_form, NG_GRAMS_KL),
                                                      SET(stat_decay, 0.95),
                                                      SET(stat_start, NG_START_ZERO),
                                                      SET(damping, 1e-6),
                                                      SET(moment_epsilon, 1e-10),
                                                      SET(max_axis, 1024),
                                                      SET(merge_axes, NG_MERGE_RIGHT),
                                                      SET(kept_axes, 2),
                                                      SET(grad_worker_fraction, 0),
                                                      NO_CLIP_NO_NORMS,
                                                      NG_VALUES_END};

/* The values need no check: the compiler has checked names and choices, and the test t_methods checks ranges. */
void ng_options_set_values(ng_options *full, const ng_option_setting *values) {
  for (; values->option != NG_OPTION_COUNT; values++) {
    ng_option_store(&ng_option_table[values->option], full, values->value);
  }
}

/* ---- the methods -----------------------------------------------------------------------------*/

#define COUNT(list) (int32_t)(sizeof(list) / sizeof(list)[0])

/* A method has no code of its own: a family reads only options, never the name of the method. */
static const struct method {
  const char *name;
  const char *family; /* name of an ng_family */
  const char *help, *paper;
  const ng_option_setting *values;
  const ng_published_names *names; /* NULL: no published program */
  /* family of the parameters that `family` does not accept; NULL: none */
  const char *other_family;
} method[] = {
    {"natgrad", "kronecker",
     "textbook scaling: damping means the same for every batch and rank count",
     "Martens & Grosse 2015, arXiv 1503.05671; Grosse & Martens 2016, arXiv 1602.01407", no_values,
     NULL, NULL},
    {"kaisa", "kronecker", "gpauloski/kfac-pytorch as published",
     "Pauloski et al. 2021, arXiv 2107.01739", kaisa_values, &ng_names_kaisa, NULL},
    {"mpd-kfac", "kronecker", "lzhangbv/kfac_pytorch, factors over all ranks, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143, where it is the baseline", mpd_values,
     &ng_names_lz, NULL},
    {"dp-kfac", "kronecker", "lzhangbv/kfac_pytorch, factors from the owner's batch, as published",
     "Zhang, Shi, Wang & Li 2022, arXiv 2206.15143", dp_values, &ng_names_lz, NULL},
    {"eva", "rankone", "lzhangbv/eva as published: mean vectors of 16 samples a rank",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123", eva_values, &ng_names_eva, NULL},
    {"eva-f", "rankone", "eva with the mean vector of the inputs only, as in FOOF",
     "Zhang, Shi & Li 2023, arXiv 2308.02123; FOOF: Benzing 2022, arXiv 2201.12250", eva_f_values,
     &ng_names_eva, NULL},
    {"eva-natgrad", "rankone",
     "Eva with all samples and the textbook scale: damping means the same as in natgrad",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123; scale: arXiv 1602.01407", no_values, NULL,
     NULL},
    {"eva-kfac", "kronecker", "the K-FAC that lzhangbv/eva compares itself with",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123, where it is the baseline", eva_kfac_values,
     &ng_names_eva_kfac, NULL},
    {"adasgd", "rankone", "lzhangbv/eva: the gradient over its own squared norm and damping",
     "Zhang, Shi & Li 2023 (ICLR), arXiv 2308.02123, in an ablation", adasgd_values,
     &ng_names_adasgd, NULL},
    {"sam", "kronecker",
     "lzhangbv/eva: the gradient plus its product with K-FAC's factors, after SAM",
     "Foret, Kleiner, Mobahi & Neyshabur 2021, arXiv 2010.01412", sam_values, &ng_names_sam, NULL},
    {"mfac", "window", "IST-DASLab/M-FAC: the inverse of the last gradients' mean outer product",
     "Frantar, Kurtic & Alistarh 2021, arXiv 2107.03356", mfac_values, &ng_names_mfac, NULL},
    {"ggt", "window", "IST-DASLab/EFCP: full-matrix AdaGrad over the last gradients",
     "Agarwal et al. 2019, arXiv 1806.02958", ggt_values, &ng_names_ggt, NULL},
    {"spngd", "kronecker",
     "SP-NGD: K-FAC with the empirical Fisher, units of 2x2 for norms, statistics on their owners",
     "Osawa et al. 2020, arXiv 2002.06015; Osawa et al. 2019, arXiv 1811.12019", spngd_values,
     &ng_names_spngd, NULL},
    {"efcp", "window", "IST-DASLab/EFCP: M-FAC of the largest entries, with error feedback",
     "Modoranu et al. 2024 (ICML), arXiv 2306.06098", efcp_values, &ng_names_efcp, NULL},
    {"sparse-ggt", "window", "IST-DASLab/EFCP: GGT of the largest entries, with error feedback",
     "Modoranu et al. 2024 (ICML), arXiv 2306.06098", sparse_ggt_values, &ng_names_sparse_ggt,
     NULL},
    {"lowrank-mfac", "window", "IST-DASLab/EFCP: M-FAC of low-rank factors, with error feedback",
     "Modoranu et al. 2024 (ICML), arXiv 2306.06098", lowrank_values, &ng_names_lowrank, NULL},
    {"topk-sgd", "window", "SGD with the largest entries of its step, with error feedback",
     "Stich, Cordonnier & Jaggi 2018, arXiv 1809.07599; EFCP: arXiv 2306.06098", topk_sgd_values,
     &ng_names_topk_sgd, NULL},
    {"topk-adam", "window", "Adam with the largest entries of its step, with error feedback",
     "Kingma & Ba 2015, arXiv 1412.6980; EFCP: arXiv 2306.06098", topk_adam_values,
     &ng_names_topk_adam, NULL},
    {"topk-adagrad", "window", "AdaGrad over the largest entries of gradients, with error feedback",
     "Duchi, Hazan & Singer 2011 (JMLR); EFCP: arXiv 2306.06098", topk_adagrad_values,
     &ng_names_topk_adagrad, NULL},
    {"kfac-adam", "kronecker-adam",
     "Adam in the eigenbases of A and G; all other parameters by Adam",
     "this library; bases: arXiv 1503.05671; Adam in a basis: SOAP, Vyas et al. 2024, arXiv "
     "2409.11321",
     kfac_adam_values, NULL, "adam"},
    {"muon", "muon",
     "KellerJordan/Muon: momentum, orthogonalised by Newton-Schulz; Adam for the rest",
     "Jordan et al. 2024, kellerjordan.github.io/posts/muon; Bernstein & Newhouse 2024, arXiv "
     "2409.20325",
     muon_values, &ng_names_muon, "adam"},
    {"torch-muon", "muon",
     "torch.optim.Muon: momentum, orthogonalised by Newton-Schulz; AdamW for the rest",
     "Liu et al. 2025, arXiv 2502.16982", torch_muon_values, &ng_names_torch_muon, "adam"},
    {"newton-muon", "kronecker-muon",
     "Newton-Muon: Muon of the gradient times the damped inverse of A; AdamW for the rest",
     "Du & Su 2026, arXiv 2604.01472; Muon: Liu et al. 2025, arXiv 2502.16982", newton_muon_values,
     NULL, "adam"},
    {"adam", "adam",
     "Adam; with update = sgd and decoupled weight decay AdamW, beside other methods",
     "Kingma & Ba 2015, arXiv 1412.6980; Loshchilov & Hutter 2019, arXiv 1711.05101", adam_values,
     NULL, NULL},
    {"ekfac", "kronecker-ekfac",
     "EKFAC: second moments of the gradients of samples in the eigenbases of A and G",
     "George et al. 2018, arXiv 1806.03884", ekfac_values, NULL, NULL},
    {"soap", "soap", "nikhilvyas/SOAP: Adam in the eigenbases of the gradient's Gram matrices",
     "Vyas et al. 2024, arXiv 2409.11321", soap_values, &ng_names_soap, NULL},
    {"soap-natgrad", "soap",
     "SOAP with a new basis in every step, to which the second moments are rotated",
     "Vyas et al. 2024, arXiv 2409.11321; second moments: this library", soap_natgrad_values, NULL,
     NULL},
    {"shampoo", "shampoo",
     "facebookresearch/optimizers: roots of the Gram matrices of the gradient's axes",
     "Gupta, Koren & Singer 2018, arXiv 1802.09568; Shi et al. 2023, arXiv 2309.06497",
     shampoo_values, &ng_names_shampoo, NULL},
    {"kl-shampoo", "shampoo",
     "Shampoo with matrices that minimise the KL divergence to the covariance of the gradient",
     "Lin et al. 2025, arXiv 2509.03378", kl_shampoo_values, NULL, NULL},
};

/* The variants of published programs ("systems"). */
static const struct variant {
  const char *program; /* name of the program in messages */
  const char *names;   /* accepted names of the variant, as copy_letters_and_digits() writes them */
  const char *variant, *method;
  const ng_option_setting *values; /* the values that differ from the method's values */
} variant[] = {
    {"KAISA", "kaisa|gpauloski", "eigen", "kaisa", no_values},
    {"KAISA", "kaisa|gpauloski", "inverse", "kaisa", ng_kaisa_inverse},
    {"DP-KFACrepo", "dpkfacrepo|dpkfac|lzhangbv", "eigen", "mpd-kfac", no_values},
    {"DP-KFACrepo", "dpkfacrepo|dpkfac|lzhangbv", "inverse", "mpd-kfac", lz_inverse},
    {"DP-KFACrepo", "dpkfacrepo|dpkfac|lzhangbv", "eigen_dp", "dp-kfac", no_values},
    {"DP-KFACrepo", "dpkfacrepo|dpkfac|lzhangbv", "inverse_dp", "dp-kfac", lz_inverse},
    {"Eva", "eva|fusedeva|lzhangbveva", "", "eva", no_values},
    {"Eva", "eva|fusedeva|lzhangbveva", "eva", "eva", no_values},
    {"Eva", "eva|lzhangbveva", "kfac", "eva-kfac", no_values},
    {"Eva", "eva|lzhangbveva", "adasgd", "adasgd", no_values},
    {"Eva", "eva|lzhangbveva", "sam", "sam", no_values},
    {"M-FAC", "mfac|istdaslabmfac", "mfac", "mfac", no_values},
    {"EFCP", "efcp|istdaslabefcp", "mfac", "efcp", efcp_dense},
    {"EFCP", "efcp|istdaslabefcp", "sparse-mfac", "efcp", no_values},
    {"EFCP", "efcp|istdaslabefcp", "ggt", "ggt", no_values},
    {"EFCP", "efcp|istdaslabefcp", "sparse-ggt", "sparse-ggt", no_values},
    {"EFCP", "efcp|istdaslabefcp", "lowrank-mfac", "lowrank-mfac", no_values},
    {"chainerkfac", "chainerkfac|tyoheichainerkfac", "spngd", "spngd", chainerkfac_values},
    {"SOAP", "soap|nikhilvyassoap", "soap", "soap", no_values},
    {"Distributed Shampoo", "distributedshampoo|shampoo|facebookresearchoptimizers", "shampoo",
     "shampoo", no_values},
    {"KellerJordan/Muon", "muon|kellerjordanmuon|kellerjordan", "muon", "muon", no_values},
    {"torch.optim.Muon", "torchoptimmuon", "muon", "torch-muon", no_values},
    {"kronfluence", "kronfluence|pomonamkronfluence", "ekfac", "ekfac", ekfac_published},
    {"curvlinops", "curvlinops|fdangelcurvlinops", "ekfac", "ekfac", ekfac_published},
};

static const struct method *find_method(const char *name) {
  for (int32_t i = 0; i < COUNT(method); i++) {
    if (ng_is(method[i].name, name)) return &method[i];
  }
  return NULL;
}

/* Append a name to a list, which is "" at first. */
static void append_name(char list[NG_MESSAGE], const char *between, const char *name) {
  if (list[0] != 0) ng_name_append(list, NG_MESSAGE, between);
  ng_name_append(list, NG_MESSAGE, name);
}

static ng_status fail_unknown_method(const char *name, char *message, size_t size) {
  char list[NG_MESSAGE] = "";
  for (int32_t i = 0; i < COUNT(method); i++) {
    append_name(list, "|", method[i].name);
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "there is no method '%s', there is %s%s",
                    ng_shorten(name).text, list, ng_hint_list(name, list).text);
}

/* The message lists "KAISA, DP-KFACrepo and Eva".  In `variant` the rows of a program are adjacent. */
static ng_status fail_unknown_system(const char *system, char *message, size_t size) {
  char list[NG_MESSAGE] = "";
  const char *last = variant[COUNT(variant) - 1].program;
  for (int32_t i = 0; i < COUNT(variant); i++) {
    const char *program = variant[i].program;
    if (i > 0 && ng_is(program, variant[i - 1].program)) continue;
    append_name(list, ng_is(program, last) ? " and " : ", ", program);
  }
  return ng_fail_to(message, size, NG_ERR_ARG, "there is no system '%s', there is %s",
                    ng_shorten(system).text, list);
}

/* Set every option to its default, then to the values of the method and its variant; none is marked as given.  The table
 * has defaults as texts. */
static void set_method_values(ng_options *o, const struct method *m,
                              const ng_option_setting *variant_values) {
  memset(o, 0, sizeof *o);
  o->base.method = m->name;
  o->base.family = m->family;
  o->base.other_family = m->other_family;
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    const ng_option_row *row = &ng_option_table[i];
    const ng_status st = ng_option_read(row, row->default_text, o, NULL, 0);
    NG_ASSERT(st == NG_OK);
    (void)st;
  }
  ng_options_set_values(o, m->values);
  ng_options_set_values(o, variant_values);
  memset(o->given, 0, sizeof o->given);
}

void ng_options_set_defaults(ng_options *full) {
  set_method_values(full, find_method("natgrad"), no_values);
}

ng_status ng_options_set_method(ng_options *o, const char *name, char *message, size_t size) {
  if (name == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "method: value is NULL");
  const struct method *m = find_method(name);
  if (m == NULL) return fail_unknown_method(name, message, size);
  ng_options changed;
  set_method_values(&changed, m, no_values);
  for (int32_t i = 0; i < NG_OPTION_COUNT; i++) {
    if (o->given[i]) ng_option_copy(&ng_option_table[i], o, &changed);
  }
  *o = changed;
  return NG_OK;
}

/* Copy only the letters, in lower case, and the digits of `name`: "DP-KFAC repo" and "dp_kfac_repo" become equal. */
static void copy_letters_and_digits(const char *name, char *out, size_t size) {
  size_t n = 0;
  for (; *name != 0 && n < size - 1; name++) {
    const char c = *name;
    if (c >= 'A' && c <= 'Z') {
      out[n++] = (char)(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      out[n++] = c;
    }
  }
  out[n] = 0;
}

ng_status ng_options_set_system(ng_options *o, const char *system, const char *which, char *message,
                                size_t size) {
  char word[64];
  char variants[NG_MESSAGE] = "";
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  if (system == NULL || which == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "%s: it is NULL",
                      system == NULL ? "system" : "variant");
  }
  copy_letters_and_digits(system, word, sizeof word);
  for (int32_t i = 0; i < COUNT(variant); i++) {
    if (!ng_in_list(variant[i].names, word)) continue;
    if (ng_is(variant[i].variant, which)) {
      set_method_values(o, find_method(variant[i].method), variant[i].values);
      return NG_OK;
    }
    /* the message does not list the variant "" */
    if (variant[i].variant[0] != 0) append_name(variants, "|", variant[i].variant);
  }
  if (variants[0] == 0) return fail_unknown_system(system, message, size);
  return ng_fail_to(message, size, NG_ERR_ARG, "system '%s' has no variant '%s', there is %s%s",
                    ng_shorten(system).text, ng_shorten(which).text, variants,
                    ng_hint_list(which, variants).text);
}

ng_status ng_options_set_published(ng_options *o, const char *name, const char *value, double *lr,
                                   char *message, size_t size) {
  if (o == NULL) return ng_fail_to(message, size, NG_ERR_ARG, "ng_options: it is NULL");
  if (name == NULL || value == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG, "published option: %s is NULL",
                      name == NULL ? "the name" : "the value");
  }
  const struct method *m = find_method(o->base.method);
  if (m->names == NULL) {
    return ng_fail_to(message, size, NG_ERR_ARG,
                      "'%s': method %s has no published names; use ng_options_set",
                      ng_shorten(name).text, m->name);
  }
  ng_options full = *o;
  ng_published_job j = {.value = value, .full = &full, .lr = -1, .message = message, .size = size};
  const ng_status st = ng_published_set(m->names, m->name, name, &j);
  if (st != NG_OK) return st;
  *o = full;
  if (j.lr >= 0 && lr != NULL) *lr = j.lr;
  return NG_OK;
}

/* ---- rows of the tables ----------------------------------------------------------------------*/

int32_t ng_method_count(void) { return COUNT(method); }

bool ng_method_describe(int32_t i, ng_method_info *out) {
  if (i < 0 || i >= COUNT(method)) return false;
  const struct method *m = &method[i];
  *out = (ng_method_info){sizeof *out, m->name,  m->family,
                          m->help,     m->paper, m->names == NULL ? 0 : m->names->count,
                          ""};
  return true;
}

ng_status ng_method_published_at(int32_t m, int32_t i, ng_published_info *out) {
  if (out == NULL || m < 0 || m >= COUNT(method) || i < 0) return NG_ERR_ARG;
  const ng_published_names *names = method[m].names;
  if (names == NULL || i >= names->count) return NG_ERR_ARG;
  const ng_published *p = &names->row[i];
  const ng_published_info info = {sizeof info, p->name, p->option, p->meaning};
  return ng_struct_write(out, &info, sizeof info);
}
