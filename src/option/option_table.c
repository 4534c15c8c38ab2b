/* option_table.c: one row for each option: default, bounds, choices, help.
 *
 * The command line, the environment, `natgrad info --options`, docs/options.md, the man page and the PyTorch front read
 * this table.  The first line of a help is a summary; a line "- value: meaning" describes one value.  CONTRIBUTING.md,
 * recipe 1, tells how to add an option.  The defaults are the values of method "natgrad". */
#include "option/option_rows.h"

const ng_option_row ng_option_table[NG_OPTION_COUNT] = {
    ROW(solver, "curvature", "cholesky",
        ONE_OF_4(NG_SOLVER_, CHOLESKY, "cholesky", EIGEN, "eigen", EIGEN_PREDIV, "eigen-prediv",
                 PRODUCT, "product"),
        FACTORS, LAYER,
        .help = "How the damped curvature A (x) G is inverted (arXiv 1503.05671; convolutions: "
                "1602.01407).\n"
                "- cholesky: invert each damped factor.\n"
                "- eigen: PD = Q_G ((Q_G' D Q_A) / (d_G d_A' + damping)) Q_A', which can damp the "
                "product of eigenvalues.\n"
                "- eigen-prediv: as eigen, but divide by the damping of the last solve.\n"
                "- product: multiply by the factors instead of inverting them, see radius."),
    ROW(eigen_floor, "curvature", "0", FROM(0, REAL_MAX, "eigenvalue"), FACTORS, LAYER, LIVE,
        .help = "solver = eigen, eigen-prediv: eigenvalues at or below this value count as 0."),
    ROW(damping, "curvature", "0.1", ABOVE(0, REAL_MAX, "curvature"), LAYER, LIVE,
        NEEDS(window_function,
              MFAC | 1U << NG_WINDOW_GGT | 1U << NG_WINDOW_ADAM | 1U << NG_WINDOW_ADAGRAD),
        .help =
            "lambda, added to the curvature before it is inverted. With moments in eigenbases of "
            "factors: the shift of an orthogonal iteration, in units of the mean eigenvalue. With "
            "Newton-Muon: added to A, in units of its mean eigenvalue."),
    ROW(damping_split, "curvature", "pi",
        ONE_OF_4(NG_SPLIT_, JOINT, "joint", FULL, "full", PI, "pi", ROOT, "root"), FACTORS, LAYER,
        .help = "How lambda = damping is divided between A [p, p] and G [q, q].\n"
                "- joint: d_G d_A + lambda for each product of eigenvalues, the exact F + lambda "
                "I; needs solver = eigen or eigen-prediv.\n"
                "- full: A + lambda I and G + lambda I.\n"
                "- pi: A + pi sqrt(lambda) I and G + sqrt(lambda) / pi I, pi = sqrt((tr A / p) / "
                "(tr G / q)).\n"
                "- root: A + sqrt(lambda) I and G + sqrt(lambda) I."),
    ROW(damping_leak, "curvature", "0", ONE_OF_3(NG_LEAK_, NONE, "0", OWNER, "owner", ALL, "all"),
        FACTORS, LAYER,
        .help = "Add the damping of each solve to the stored running average, on these ranks.\n"
                "- 0: none.\n"
                "- owner: the rank that solves; the next sum over ranks divides the damping by "
                "the number of ranks (MPD-KFAC, DP-KFAC).\n"
                "- all: every rank, as in eva-kfac, where each rank solves all factors. Ranks that "
                "share a batch always use all."),
    ROW(output_factor, "curvature", "full",
        ONE_OF_2(NG_OUTPUT_, FULL, "full", DIAGONAL, "diagonal"), FACTORS, LAYER,
        .help = "The form of factor G.\n"
                "- full: a matrix, which max_factor and factor_blocks may cut.\n"
                "- diagonal: only the diagonal."),
    ROW(spatial, "curvature", "factored", ONE_OF_2(NG_SPATIAL_, FULL, "full", FACTORED, "factored"),
        FACTORS, LAYER, .older_states = "full",
        .help =
            "The form of factor A of a convolution; published methods have full.\n"
            "- full: a matrix over channels and kernel positions.\n"
            "- factored: A = S (x) C, S over kernel positions, C over channels, where a group "
            "has more input channels than kernel positions, or more than 9. Needs positions = "
            "expand, inverse_dtype below f64, and solver = cholesky or moments in eigenbases (then "
            "without groups and diagonal blocks); other layers stay full."),
    ROW(gradient_rows, "curvature", "256", FROM(0, COUNT_MAX, "rows"), FACTORS, LAYER,
        NEEDS(solver, 1U << NG_SOLVER_CHOLESKY),
        .help = "Most rows of inputs and output gradients that a linear layer stores to compute PD "
                "from them; 0: none.\n"
                "If D = g' a up to a factor, PD = (g G^-1)' (a A^-1), which takes fewer operations "
                "than G^-1 D A^-1 with few rows (samples times positions). Rows are stored if they "
                "save 40 %. One rank only."),
    ROW(radius, "curvature", "0", FROM(0, REAL_MAX, "norm"), FACTORS,
        .help = "solver = product: PD = D + radius / sqrt(sum ||D||^2) G D A, the ascent of SAM "
                "(arXiv 2010.01412).\n"
                "Must be above 0 with product, else 0; damping has no effect on PD."),
    ROW(sides, "curvature", "both", ONE_OF_3(NG_SIDES_, BOTH, "both", INPUT, "input", NONE, "none"),
        .trait = NG_TRAIT_VECTORS, LAYER,
        .help = "Rank-one curvature (Eva, arXiv 2308.02123) from the mean input a and the mean "
                "output gradient g.\n"
                "- both: (a a') (x) (g g').\n"
                "- input: (a a') (x) I; output gradients are not observed.\n"
                "- none: PD = D / (damping + ||D||^2) (AdaSGD); nothing is observed."),

    ROW(stat_decay, "statistics", "0.95", OBSERVED, FROM(0, 1, "weight"), LAYER, LIVE,
        .help = "rho, the weight of the old running average: F <- rho F + (1 - rho) new.\n"
                "1: the average stays as it starts; of Shampoo, it is the sum over steps."),
    ROW(stat_start, "statistics", "first", OBSERVED,
        ONE_OF_3(NG_START_, FIRST, "first", IDENTITY, "identity", ZERO, "zero"), LAYER,
        .help = "The running average before the first statistics.\n"
                "- first: none; the first statistics enter with weight 1.\n"
                "- identity: the identity matrix.\n"
                "- zero: zeros."),
    ROW(stat_scale, "statistics", "textbook", OBSERVED,
        ONE_OF_5(NG_SCALE_, TEXTBOOK, "textbook", KAISA, "kaisa", MPD_KFAC, "mpd-kfac", EVA, "eva",
                 CHAINERKFAC, "chainerkfac"),
        LAYER,
        .help =
            "The divisors of the statistics, and the weight of one observation in the mean "
            "over a step and over ranks.\n"
            "- textbook: damping means the same for every batch, image and rank count; the "
            "weight is the number of samples.\n"
            "- kaisa: the divisors of gpauloski/kfac-pytorch; equal weights.\n"
            "- mpd-kfac: the divisors of lzhangbv/kfac_pytorch; the weight is the number of "
            "samples.\n"
            "- eva: plain means over the rows (methods with mean vectors only); equal weights.\n"
            "- chainerkfac: the divisors of textbook; equal weights."),
    ROW(positions, "statistics", "expand", OBSERVED,
        ONE_OF_2(NG_POSITIONS_, EXPAND, "expand", REDUCE, "reduce"), LAYER,
        .help = "Positions of a sequence or image.\n"
                "- expand: each position is a sample.\n"
                "- reduce: positions are averaged first."),
    ROW(stat_batch, "statistics", "0", OBSERVED, FROM(0, COUNT_MAX, "samples"), LAYER,
        .help = "Use only the first samples of each micro-batch; 0: all."),
    ROW(calls, "statistics", "mean", OBSERVED,
        ONE_OF_3(NG_CALLS_, MEAN, "mean", EMA, "ema", LAST, "last"), LAYER,
        .help = "Several observations of a layer in one step.\n"
                "- mean: their mean.\n"
                "- ema: each observation updates the running average.\n"
                "- last: only the last observation."),
    ROW(stat_period, "statistics", "1", OBSERVED, FROM(1, COUNT_MAX, "steps"), LAYER, LIVE,
        .help = "Steps between observations of statistics."),
    ROW(solve_period, "statistics", "10", OBSERVED, FROM(1, COUNT_MAX, "steps"),
        .trait = NG_TRAIT_SOLVES, LAYER, LIVE,
        .help = "Steps between solves (inverses, eigenbases)."),
    ROW(overhead, "statistics", "0", OBSERVED, FROM(0, REAL_MAX, "share"), .trait = NG_TRAIT_SOLVES,
        .help =
            "The time of the method as a share of the caller's time between steps.\n"
            "- 0: stat_period and solve_period are fixed.\n"
            "- above 0: after 20 steps the library chooses each of the two periods that the caller "
            "has not set: 1, 2, 5, 10, 20, 50 or 100. It takes the shortest periods whose mean "
            "step stays below the share. All ranks sum their times, so all ranks have the same "
            "periods. A saved state has the periods, so a resumed run has the same results."),
    ROW(refresh_tolerance, "statistics", "0", OBSERVED, FROM(0, REAL_MAX, "norm"),
        .help = "When statistics are refreshed.\n"
                "- 0: every stat_period steps, solved every solve_period.\n"
                "- above 0: as in SP-NGD (arXiv 2002.06015): the slower a statistic changes, the "
                "longer its interval; each refresh solves. X is the\n"
                "  average at a refresh, X1 and X2 at the two refreshes before, d1 and d2 the last "
                "intervals. The next interval is\n"
                "  max(1, d1/2) if |X - X1| >= refresh_tolerance |X1|, else d1 if X and X2 differ "
                "as much, else d1 + d2."),
    ROW(max_factor, "statistics", "0", OBSERVED, FROM(0, COUNT_MAX, "columns"), FACTORS, LAYER,
        .help = "Cut a wider factor into diagonal blocks of at most this width; 0: never."),
    ROW(factor_blocks, "statistics", "1", OBSERVED, FROM(1, COUNT_MAX, "blocks"), FACTORS, LAYER,
        .help = "Cut every factor into at least this number of diagonal blocks."),
    ROW(factor_dtype, "statistics", "f32", OBSERVED,
        ONE_OF_4(NG_, F32, "f32", F64, "f64", BF16, "bf16", F16, "f16"), FACTORS, LAYER,
        .help = "The type of running averages of factors; f64: the sums of a step, too. Norm "
                "layers and A of an embedding always use f32."),
    ROW(inverse_dtype, "statistics", "f32", OBSERVED,
        ONE_OF_4(NG_, F32, "f32", F64, "f64", BF16, "bf16", F16, "f16"), FACTORS, LAYER,
        .help = "The type of inverses and eigenvectors; f64: directions are computed in double, "
                "too. Norm layers always use f32."),

    ROW(norm_block, "norm layers", "unit",
        ONE_OF_4(NG_NORM_, UNIT, "unit", FULL, "full", DIAGONAL, "diagonal", NONE, "none"), LAYER,
        .help = "The curvature F of gamma and beta: second moments of the gradients of single "
                "samples; PD = (F + damping norm_damping I)^-1 D.\n"
                "- unit: the 2x2 block of each channel (SP-NGD, arXiv 2002.06015).\n"
                "- full: all channels, [2C, 2C].\n"
                "- diagonal: the diagonal of F (arXiv 1811.12019).\n"
                "- none: the gradient is not changed."),
    ROW(norm_damping, "norm layers", "1", ABOVE(0, REAL_MAX, "damping"), LAYER, LIVE,
        NEEDS(norm_block, 1U << NG_NORM_UNIT | 1U << NG_NORM_FULL | 1U << NG_NORM_DIAGONAL),
        .help = "The factor of damping in norm layers."),

    ROW(clip, "clip", "kl",
        ONE_OF_7(NG_CLIP_, KL, "kl", RESCALE, "rescale", NORM, "norm", RATIO, "ratio", RMS, "rms",
                 NONE, "none", VALUE, "value"),
        LIVE,
        .help = "The clip factor nu, which multiplies every preconditioned gradient PD of a "
                "gradient D.\n"
                "- kl: nu = min(1, sqrt(kl_clip / |lr^2 sum <PD, D>|)), 1 if the sum is 0.\n"
                "- rescale: nu = sqrt(sum ||D||^2 / sum ||PD||^2), 1 if the divisor is 0.\n"
                "- norm: nu = min(1, clip_bound / sqrt(sum ||PD||^2)).\n"
                "- ratio: each weight w and each bias has min(50, clip_bound ||w|| / ||PD||), 1 if "
                "a norm is 0 (LARS, arXiv 1708.03888);\n"
                "  weights must be bound.\n"
                "- rms: each weight and each bias has 1 / max(1, rms(PD) / clip_bound) (Adafactor, "
                "arXiv 1804.04235).\n"
                "- none: nu = 1.\n"
                "- value: nu = 1, and each element of PD is limited to [-clip_bound, clip_bound]."),
    ROW(kl_clip, "clip", "0.001", ABOVE(0, REAL_MAX, "KL"), LIVE, NEEDS(clip, 1U << NG_CLIP_KL),
        .help = "clip = kl: the bound kappa."),
    ROW(clip_bound, "clip", "0", FROM(0, REAL_MAX, "norm"), LIVE,
        NEEDS(clip,
              1U << NG_CLIP_NORM | 1U << NG_CLIP_RATIO | 1U << NG_CLIP_RMS | 1U << NG_CLIP_VALUE),
        .help = "clip = norm, ratio, rms, value: the bound, which must be above 0."),

    ROW(first_decay, "moments", "0.9", MOMENTS, FROM(0, 0.999999, "weight"), LAYER, LIVE,
        .help = "beta1 of Adam (arXiv 1412.6980): M <- beta1 M + (1 - beta1) D."),
    ROW(second_decay, "moments", "0.999", MOMENTS, FROM(0, 0.999999, "weight"), LAYER, LIVE,
        .help = "beta2 of Adam: V <- beta2 V + (1 - beta2) D^2."),
    ROW(moment_epsilon, "moments", "1e-08", MOMENTS, ABOVE(0, REAL_MAX, "gradient"), LAYER, LIVE,
        .help = "epsilon of Adam: PD = adam_lr (M / (1 - beta1^t)) / (sqrt(V / (1 - beta2^t)) + "
                "epsilon), with t the steps of the layer."),
    ROW(adam_lr, "moments", "1", MOMENTS, FROM(0, REAL_MAX, "lr/lr"), LAYER, LIVE,
        .help = "The learning rate of Adam as a multiple of lr. Groups of ng_set_group can have "
                "learning rates of their own instead."),

    ROW(muon_momentum, "muon", "0.95", MUON, FROM(0, 0.999999, "weight"), LIVE,
        .help =
            "mu: B <- mu B + (1 - mu) D, from B = 0; PD = s NS(U) with U of muon_nesterov, s of "
            "muon_scale."),
    ROW(muon_nesterov, "muon", "1", MUON, LIVE, .help = "1: U = (1 - mu) D + mu B. 0: U = B."),
    ROW(muon_scale, "muon", "matrix", MUON, LIVE,
        ONE_OF_4(NG_MUON_, MATRIX, "matrix", AXES, "axes", RMS, "rms", LARGEST, "largest"),
        .help = "The factor s of a weight of m x n, where m is the number of outputs.\n"
                "- matrix: sqrt(max(1, m / n)) (torch.optim.Muon: original).\n"
                "- axes: as matrix, but of a convolution m x n is the kernel (KellerJordan/Muon).\n"
                "- rms: 0.2 sqrt(max(m, n)), about the size of AdamW's PD (arXiv 2502.16982).\n"
                "- largest: sqrt(max(m, n))."),
    ROW(muon_steps, "muon", "5", MUON, FROM(1, COUNT_MAX, "iterations"), LIVE,
        .help = "Iterations W <- a W + (b A + c A A) W, A = W W', from W = U / |U|, of the smaller "
                "side of U; at most 100 iterations."),
    ROW(muon_coefficients, "muon", "simple", MUON, LIVE,
        ONE_OF_6(NG_MUON_, SIMPLE, "simple", QUINTIC, "quintic", DEEPSEEK, "deepseekv4",
                 POLAR_EXPRESS, "polar_express", CANS, "cans", CUBIC, "cubic5"),
        .help =
            "The coefficients (a, b, c) of the iterations, as in NVIDIA Emerging-Optimizers.\n"
            "A range contains the singular values of PD / s, if those of U / |U| are at least 0.01 "
            "and muon_steps is the number of triples (simple: 5).\n"
            "- simple: muon_a, muon_b, muon_c in each, from 0.68 to 1.14.\n"
            "- quintic: 5 triples, again and again, from 0.97 to 1.04.\n"
            "- deepseekv4: 8 times the default of simple, then (2, -1.5, 0.5) "
            "twice, from 0.999 to 1.001.\n"
            "- polar_express: 8 triples, then the last one (arXiv 2505.16932), from 0.999 to "
            "1.001.\n"
            "- cans: 5 triples, then the last one (arXiv 2506.10935), from 0.88 to 1.12.\n"
            "- cubic5: 5 triples with c = 0, again and again (arXiv 2606.00371); no product A A, "
            "from "
            "0.77 to 1.3."),
    ROW(muon_a, "muon", "3.4445", MUON, FROM(-100, 100, "weight"), LIVE, OWN_SET,
        .help = "a of muon_coefficients = simple."),
    ROW(muon_b, "muon", "-4.775", MUON, FROM(-100, 100, "weight"), LIVE, OWN_SET,
        .help = "b of muon_coefficients = simple."),
    ROW(muon_c, "muon", "2.0315", MUON, FROM(-100, 100, "weight"), LIVE, OWN_SET,
        .help = "c of muon_coefficients = simple; 0: no product A A."),
    ROW(muon_norm, "muon", "bound", MUON, ONE_OF_2(NG_MUON_, BOUND, "bound", SUM, "sum"),
        .help = "The divisor of U.\n"
                "- bound: max(|U|, muon_epsilon).\n"
                "- sum: |U| + muon_epsilon."),
    ROW(muon_epsilon, "muon", "1e-07", MUON, ABOVE(0, REAL_MAX, "gradient"), LIVE,
        .help = "See muon_norm. Gradients with a norm far below it give short steps."),
    ROW(muon_rounding, "muon", "none", MUON,
        ONE_OF_3(NG_MUON_, NO_ROUNDING, "none", EACH, "each", FUSED, "fused"),
        .help = "Rounding to bf16, as in the published programs, which iterate in bf16.\n"
                "- none: f32; closer to the exact iteration. With AMX or AVX512_BF16 the other values are faster.\n"
                "- each: after every operation, the product with s included (KellerJordan/Muon).\n"
                "- fused: after each product with its sum (torch.optim.Muon)."),

    /* Gradients as tensors. */
    ROW(bias_correction, "gradient axes", "1", GRAMS, LAYER,
        .help = "1: correct moments for their start from 0."),
    ROW(max_axis, "gradient axes", "10000", GRAMS, FROM(1, COUNT_MAX, "length"), LAYER,
        .help = "The longest axis of a gradient with a matrix L = average of D_(k) D_(k)', D_(k) "
                "the gradient with axis k as rows. SOAP does not rotate a longer axis; Shampoo "
                "cuts it, "
                "and each piece of a parameter has matrices and a grafting norm of its own."),
    ROW(merge_axes, "gradient axes", "none", GRAMS,
        ONE_OF_3(NG_MERGE_, NONE, "none", LEFT, "left", RIGHT, "right"), LAYER,
        .help =
            "Which axes of a gradient are joined first.\n"
            "- none: none.\n"
            "- left: neighbours, from the first axis on, while their product is at most "
            "max_axis.\n"
            "- right: neighbours, from the last axis on, while their product is at most max_axis "
            "and more than kept_axes axes remain."),
    ROW(kept_axes, "gradient axes", "1", GRAMS, FROM(1, COUNT_MAX, "axes"), LAYER,
        NEEDS(merge_axes, 1U << NG_MERGE_RIGHT),
        .help = "merge_axes = right: the least number of axes that remain. 1: a small parameter "
                "becomes a vector; 2: the kernel of a convolution becomes a matrix."),
    ROW(vector_factor, "gradient axes", "0", GRAMS, LAYER,
        .help = "1: vectors, such as biases, have a matrix L, too. Of SOAP, and of Shampoo with "
                "gram_form = eigen or qr."),
    ROW(basis_moments, "gradient axes", "permute", GRAMS,
        ONE_OF_2(NG_BASIS_, PERMUTE, "permute", ROTATE, "rotate"), LAYER,
        .help = "The second moments V when the basis changes; first moments are rotated.\n"
                "- permute: V gets the order of the sorted vectors (arXiv 2409.11321).\n"
                "- rotate: V becomes the diagonal of T diag(V) T', with T from the old basis to "
                "the new one."),
    ROW(normalize, "gradient axes", "0", GRAMS, LAYER,
        .help = "1: the root mean square of PD of each parameter is 1."),
    ROW(gram_form, "gradient axes", "plain", ROOTS,
        ONE_OF_4(NG_GRAMS_, PLAIN, "plain", KL, "kl", EIGEN, "eigen", QR, "qr"),
        .help =
            "The matrix that enters the average L_k of axis k, and the exponent of its root.\n"
            "- plain: D_(k) D_(k)'; -1 / (2 K) with K axes.\n"
            "- kl: D_(k) S^-1 D_(k)' / m, S the Kronecker product of L of the other axes, of order "
            "m; -1/2 (arXiv 2509.03378).\n"
            "  damping is a multiple of the mean eigenvalue, and L starts at the size of the first "
            "gradient. Needs stat_decay below 1.\n"
            "- eigen, qr: no root (the SOAP forms of Distributed Shampoo). V is the average of D^2 "
            "in the eigenbases of L, with stat_decay.\n"
            "  In these eigenbases, PD = F / (sqrt(V / c) + damping). V is neither permuted nor "
            "rotated.\n"
            "  eigen computes eigenvectors; qr improves the basis by one orthogonal iteration."),
    ROW(root_exponents, "gradient axes", "", .trait = NG_TRAIT_ROOTS,
        .check_text = ng_exponents_check,
        .help = "Exponents of the roots, for all layers: entries \"K: E\" or \"K: E1 E2 ...\" for "
                "parameters with K axes, separated by ';'.\n"
                "Example: \"2: 0.5; 4: 0.25 * 0 *\". E means (L / c + damping I)^-E; 0: the axis "
                "has no matrix; *: 1 / (2 K)."),
    ROW(root_trace, "gradient axes", "0", ROOTS,
        .help = "1: before damping is added, L / c is divided by the square root of its trace, but "
                "at least of damping."),
    ROW(grafting, "gradient axes", "none", ROOTS,
        ONE_OF_5(NG_GRAFT_, NONE, "none", SGD, "sgd", ADAM, "adam", ADAGRAD, "adagrad", RMSPROP,
                 "rmsprop"),
        .help =
            "The step whose norm PD of a piece gets; the step itself before solve_start. F: the "
            "filtered gradient, V from 0.\n"
            "- none: none; F before solve_start.\n"
            "- sgd: F.\n"
            "- adam: F / (sqrt(V / (1 - second_decay^t)) + moment_epsilon), V the average of "
            "D^2 with second_decay.\n"
            "- adagrad: F / (sqrt(V) + moment_epsilon), V the sum of D^2.\n"
            "- rmsprop: F / (sqrt(V) + moment_epsilon), V as of adam."),
    ROW(filter_decay, "gradient axes", "0.9", ROOTS, FROM(0, 0.999999, "weight"), LIVE,
        .help = "beta3 of the filtered gradient F = beta3 M + (1 - beta3) D, M the first moment of "
                "the step before. With first_decay = 0, F = D."),
    ROW(solve_start, "gradient axes", "0", ROOTS, FROM(0, COUNT_MAX, "steps"),
        .help = "The first solve; before it, there are no roots, see grafting.\n"
                "- 0: step 1, then every solve_period steps.\n"
                "- above 0: this step, counted from 1, then the multiples of solve_period."),

    ROW(skip_layers, "layers", "", .check_text = ng_globs_check,
        .help =
            "Layers that keep their gradient: globs separated by commas, as in \"fc*,conv2d\".\n"
            "A glob must match the whole name or kind of a layer (\"linear\", \"Linear\", "
            "\"conv2d\", \"Conv2d\", \"norm\", \"embedding\", ...).\n"
            "- \"*\" matches any text, \"?\" one byte, [ab0-9] a byte of the set, [!ab] a byte "
            "outside "
            "it.\n"
            "- A backslash makes the next byte literal, also a comma.\n"
            "- linear/N matches the linear layers with N outputs.\n"
            "Globs that match no layer are logged, and ng_explain lists them."),
    ROW(per_layer, "layers", "", .check_text = ng_lines_check,
        .help = "Options of single layers: entries \"GLOBS: NAME=VALUE ...\" separated by ';'.\n"
                "Example: \"conv2d: solver=eigen; fc*,head: method=mfac window=16 damping=1e-4\".\n"
                "- The first entry with a glob that matches a layer's name or kind (a tensor's "
                "name) applies; globs as in skip_layers.\n"
                "- A layer with options of its own (ng_layer.options) keeps those. An entry that "
                "matches no layer is an error of ng_ready.\n"
                "- method=NAME takes all per-layer options from that method's row; clip, ranks, "
                "messages and update stay the model's.\n"
                "- Layers of methods with a window and with identical lines share one window."),

    ROW(statistics, "ranks", "all",
        ONE_OF_4(NG_STATISTICS_, ALL, "all", LOCAL, "local", OWNER, "owner", SHARDED, "sharded"),
        .help = "Whose batches enter the statistics, and which ranks store them.\n"
                "- all: summed over all ranks, stored by all.\n"
                "- local: the owner's batch only, never sent.\n"
                "- owner: summed over all ranks, stored by the owner.\n"
                "- sharded: windows only: each rank stores a slice of about 1/W of every row and "
                "computes that slice of PD."),
    ROW(placement, "ranks", "balanced",
        ONE_OF_7(NG_PLACEMENT_, ROUND_ROBIN, "round-robin", KAISA, "kaisa", MPD_KFAC, "mpd-kfac",
                 CONTIGUOUS, "contiguous", SPNGD, "spngd", BALANCED, "balanced", KAISA_MEMORY,
                 "kaisa-memory"),
        .help = "Which rank solves a block. Results do not depend on it, except with statistics = "
                "local.\n"
                "- round-robin: block i on rank i mod W.\n"
                "- kaisa: the most expensive block first, always to the least-loaded rank.\n"
                "- mpd-kfac: round-robin; with more ranks than blocks, A and G of a block on two "
                "ranks.\n"
                "- contiguous: runs of consecutive blocks that minimise the largest load.\n"
                "- spngd: runs of equal length in the order of names; colocate must be 1.\n"
                "- balanced: counts the products of each step, too; never more expensive than "
                "kaisa by that count.\n"
                "- kaisa-memory: as kaisa; a factor of order n costs n^2 instead of n^3."),
    ROW(colocate, "ranks", "1",
        .help = "1: one rank solves A and G of a layer. 0: each factor is placed by itself on the "
                "ranks that store the layer's inverse.\n"
                "Must be 1 with placement = spngd, and with statistics = local unless one rank "
                "stores the inverse."),
    ROW(grad_worker_fraction, "ranks", "1", FROM(0, 1, "ranks/W"),
        .trait = NG_TRAIT_SOLVES | NG_TRAIT_MUON,
        .help = "The share of ranks that store the inverse of a block; 0: the owner only."),

    ROW(wire_dtype, "messages", "f32", ONE_OF_3(NG_, F32, "f32", BF16, "bf16", F16, "f16"),
        .help = "The type in which sums of averaged statistics are sent.\n"
                "Each rank rounds its sums to this type, the transport adds in f32 or better, and "
                "the sum is rounded again. f16 sends means."),
    ROW(stat_bucket_mb, "messages", "25", FROM(0, 1e5, "MB"),
        .help = "The largest message of statistics (MB = 10^6 bytes). A larger statistic has its "
                "own message; 0: each statistic has.\n"
                "A message is posted when all its statistics are observed (ng_batch.last), or in "
                "the step. The option does not change results."),

    ROW(update, "update", "gradient",
        ONE_OF_3(NG_UPDATE_, GRADIENT, "gradient", SGD, "sgd", ADAMW, "adamw"),
        .help = "The step function that will be called: ng_step, ng_step_sgd or ng_step_adamw."),
    ROW(update_ranks, "update", "all", ONE_OF_2(NG_UPDATE_RANKS_, ALL, "all", OWNER, "owner"),
        NEEDS(update, 1U << NG_UPDATE_SGD | 1U << NG_UPDATE_ADAMW),
        .help = "update = sgd, adamw: the ranks that update a weight.\n"
                "- all: every rank.\n"
                "- owner: the owner of the block (of tensor i: rank i mod W), which alone stores "
                "the moments and broadcasts the weights."),
    ROW(decay_after, "update", "0", NEEDS(update, 1U << NG_UPDATE_SGD),
        .help = "1: decoupled weight decay multiplies the new weight, w <- (w - lr PD) (1 - lr "
                "decay); 0: the old weight."),
    ROW(missing, "update", "refuse", ONE_OF_2(NG_MISSING_, REFUSE, "refuse", KEEP, "keep"),
        .help = "What a step does with a layer or tensor without gradients (never bound, or bound "
                "with data NULL).\n"
                "- refuse: the step returns an error.\n"
                "- keep: the layer or tensor is not changed, and the report counts it; in a window "
                "its elements are zeros.\n"
                "A layer with only some of its gradients, or with an expired binding, is always an "
                "error."),
    ROW(quantify, "update", "0",
        .help = "1: report how far each element is scaled, |PD_i / (D_i + 1e-8)|: least, "
                "quartiles, largest, mean (EFCP).\n"
                "Costs two more passes over gradients and PD, and 128 KiB a thread."),

    ROW(window, "windows", "64", WINDOW, FROM(1, COUNT_MAX, "gradients"),
        .help = "m, the number of stored gradients. Windows need no observation; with G [m, d] the "
                "stored gradients and x the newest:\n"
                "- mfac: PD = (damping I + G'G / m)^-1 x (M-FAC, arXiv 2107.03356).\n"
                "- ggt: PD = U (1 / (S + damping) - 1 / damping) U' x + x / damping, G' = U S V' "
                "(GGT, arXiv 1806.02958).\n"
                "With stat_period > 1, only the gradient of every stat_period-th step enters the "
                "window; in other steps x is the gradient of the step."),
    ROW(window_function, "windows", "mfac", WINDOW,
        ONE_OF_6(NG_WINDOW_, MFAC, "mfac", MFAC_FILLED, "mfac-filled", GGT, "ggt", STEP, "step",
                 ADAM, "adam", ADAGRAD, "adagrad"),
        .help = "The direction that a window computes.\n"
                "- mfac, ggt: see window.\n"
                "- mfac-filled: while the window is not full, divide by the number of stored "
                "gradients instead of m.\n"
                "- step: window = 1; x = v with v the momentum of D.\n"
                "- adam: window = 1; x = m / (sqrt(s) + damping) with unbiased moments of D.\n"
                "- adagrad: window = 1; s <- s + x^2, PD = x / (sqrt(s) + damping)."),
    ROW(window_scope, "windows", "model", WINDOW,
        ONE_OF_3(NG_WINDOW_, MODEL, "model", PARAMETER, "parameter", GROUP, "group"),
        NEEDS_EITHER(window_function, MFAC | 1U << NG_WINDOW_GGT, window_store, TOPK),
        .help = "One curvature for all parameters, for each parameter, or for each group of "
                "ng_set_group (as it is at ng_ready)."),
    ROW(window_dtype, "windows", "f32", WINDOW, ONE_OF_2(NG_, F32, "f32", BF16, "bf16"),
        .unsupported = "f16|f64",
        .help = "The dtype of stored gradients; with bf16, x (see window) is rounded too."),
    ROW(window_forget, "windows", "1", WINDOW, FROM(0, 1, "weight"),
        .help = "ggt: in G'G (see window) the k-th gradient before the newest has the weight "
                "window_forget^(2k). adam: the weight of the old second moment."),
    ROW(window_momentum, "windows", "0", WINDOW, FROM(0, 0.999999, "weight"),
        .help = "mu, the weight of the old momentum v, see window_momentum_form; the clip applies "
                "to the result."),
    ROW(window_momentum_form, "windows", "average", WINDOW,
        ONE_OF_3(NG_MOMENTUM_, AVERAGE, "average", HEAVY_BALL, "heavy-ball", GRADIENT, "gradient"),
        NEEDS_ABOVE(window_momentum),
        .help = "The momentum, from v = 0.\n"
                "- average: v = mu v + (1 - mu) PD.\n"
                "- heavy-ball: v = mu v + PD.\n"
                "- gradient: x = v = mu v + (1 - mu) D, and D enters the window."),
    ROW(window_decay, "windows", "0", WINDOW, FROM(0, REAL_MAX, "weight"),
        NEEDS(window_decay_form, 1U << NG_DECAY_GRADIENT | 1U << NG_DECAY_DIRECTION),
        .help = "Weight decay inside the preconditioner; above 0 weights must be bound."),
    ROW(window_decay_form, "windows", "gradient", WINDOW,
        ONE_OF_3(NG_DECAY_, GRADIENT, "gradient", DIRECTION, "direction", NONE, "none"),
        NEEDS_ABOVE(window_decay),
        .help = "How window_decay is applied to the weight w.\n"
                "- gradient: D + window_decay w enters the window.\n"
                "- direction: window_decay / damping w is added to PD (mfac, as in EFCP).\n"
                "- none: not at all."),
    ROW(window_mask, "windows", "0", WINDOW,
        .help = "1: weights that are 0 at ng_ready get no gradient and no direction. Weights must "
                "be bound before ng_ready."),
    ROW(window_store, "windows", "dense", WINDOW,
        ONE_OF_5(NG_STORE_, DENSE, "dense", TOPK, "topk", TOPK_LAYER, "topk-layer", TOPK_BLOCK,
                 "topk-block", LOWRANK, "lowrank"),
        .help =
            "The stored part of a = e + D, with error feedback e <- a - stored (EFCP, arXiv "
            "2306.06098); x is the stored part, too.\n"
            "- dense: whole gradients, no error feedback.\n"
            "- topk, topk-layer, topk-block: the largest entries of all, of each parameter, or of "
            "each 32,768 consecutive elements; of equal entries the first.\n"
            "- lowrank: factors P Q' of each weight (PowerSGD, arXiv 1905.13727)."),
    ROW(window_density, "windows", "0.01", WINDOW, ABOVE(0, COUNT_MAX, "entries/all"),
        NEEDS(window_store, TOPK),
        .help = "topk: the stored share k / d, at least one entry; above 1: k itself (topk "
                "only)."),
    ROW(window_rank, "windows", "1", WINDOW, FROM(1, COUNT_MAX, "columns"),
        NEEDS(window_store, 1U << NG_STORE_LOWRANK),
        .help = "lowrank: columns of P and Q of each weight, at most its rows and columns; biases "
                "and tensors are stored whole."),
    ROW(window_fill, "windows", "none", WINDOW,
        ONE_OF_5(NG_FILL_, NONE, "none", GRADIENT, "gradient", ERROR, "error", REST, "rest", ADDED,
                 "added"),
        NEEDS(window_store, TOPK | 1U << NG_STORE_LOWRANK),
        .help = "topk, lowrank: how PD gets the part D - x that was not stored.\n"
                "- none: not at all.\n"
                "- gradient: until the window is full, elements of PD that are 0 become the "
                "elements of D.\n"
                "- error: until the window is full, elements of PD that are 0 become the elements "
                "of e, which is 0 there afterwards.\n"
                "- rest: until the window is full, (D - x) / damping is added to PD (mfac).\n"
                "- added: in every step, (D - x) / damping is added to PD (mfac)."),
    ROW(window_feedback_lr, "windows", "0", WINDOW,
        NEEDS(window_store, TOPK | 1U << NG_STORE_LOWRANK),
        .help = "1: a = e + lr D, and PD is the stored part over lr."),
    ROW(window_empty, "windows", "0", WINDOW, FROM(0, 0.999999, "lr/lr"),
        .help = "Empty the window if lr is at most window_empty times the lr of the last stored "
                "gradient; error and momentum stay. 0: never."),
};
