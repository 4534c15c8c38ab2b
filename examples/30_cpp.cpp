/* 30_cpp: natgrad from C++17: RAII handles, exceptions for errors, std::vector for weights and gradients,
 * lambdas as callbacks, and a channels-last convolution.
 *
 * The model (3x3 convolution, ReLU, mean over the image, linear layer) separates horizontal from vertical
 * stripes.  It is trained twice, with memory in the order [n, h, w, c] and [n, c, h, w]; only the strides
 * differ, so the losses must agree. */
#include <natgrad.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t N = 32, IN = 2, MID = 4, SIDE = 6, K = 3, OUT = 2;
constexpr int STEPS = 40;

/* ---- natgrad in C++ --------------------------------------------------------------------------*/

struct closer {
  void operator()(ng_context *c) const { ng_context_destroy(&c); }
  void operator()(ng_precond *p) const { ng_precond_destroy(&p); }
  void operator()(ng_options *o) const { ng_options_destroy(&o); }
};
template <class T> using handle = std::unique_ptr<T, closer>;

/* Errors become exceptions; a positive status is a note, which is returned. */
ng_status check(ng_status status, const char *why) {
  if (status < NG_OK) throw std::runtime_error(std::string(ng_status_name(status)) + ": " + why);
  return status;
}

template <class T> T make_default(void (*init)(T *, std::size_t)) {
  T value;
  init(&value, sizeof value);
  return value;
}

/* Return a struct whose size is set and whose other members are 0; the library fills it. */
template <class T> T make_struct() {
  T value{};
  value.struct_size = sizeof value;
  return value;
}

/* Memory and its ng_array; not copyable, since the ng_array points at the memory. */
class tensor {
public:
  using layout = decltype(&ng_array_nchw);
  tensor(layout how, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w)
      : memory(static_cast<std::size_t>(n * c * h * w)),
        array(how(memory.data(), n, c, h, w, NG_F32)) {}
  tensor(std::int64_t rows, std::int64_t cols)
      : memory(static_cast<std::size_t>(rows * cols)),
        array(ng_array_matrix(memory.data(), rows, cols, NG_F32)) {}
  tensor(const tensor &) = delete;
  tensor &operator=(const tensor &) = delete;

  float &operator()(std::int64_t n, std::int64_t c, std::int64_t h = 0, std::int64_t w = 0) {
    const auto *stride = array.room + 4;
    return memory[static_cast<std::size_t>(n * stride[0] + c * stride[1] + h * stride[2] +
                                           w * stride[3])];
  }
  void clear() { memory.assign(memory.size(), 0.0f); }
  const ng_array *view() const { return &array; }

private:
  std::vector<float> memory;
  ng_array array;
};

class preconditioner {
public:
  preconditioner() {
    char why[256] = "";
    auto config = make_default(ng_context_config_init);
    /* Callbacks are lambdas without captures; `user` has their data.  They must not throw. */
    config.log_user = &warnings;
    config.log = [](void *user, ng_log_level, const char *line) {
      std::fprintf(stderr, "natgrad: %s\n", line);
      ++*static_cast<int *>(user);
    };
    config.executor_user = &tasks;
    config.parallel_for = [](void *user, std::int32_t n, void (*task)(void *, std::int32_t),
                             void *arg) {
      for (std::int32_t i = 0; i < n; i++)
        task(arg, i);
      *static_cast<std::int64_t *>(user) += n;
    };
    ng_context *c = nullptr;
    check(ng_context_create(NG_VERSION, &config, why, sizeof why, &c), why);
    context.reset(c);

    ng_options *o = nullptr;
    check(ng_options_create("method=natgrad update=sgd", why, sizeof why, &o), why);
    const handle<ng_options> options(o);
    check(ng_options_set_real(o, "damping", 0.03, why, sizeof why), why);
    check(ng_options_set(o, "clip", "none", why, sizeof why), why);
    ng_precond *p = nullptr;
    verify(ng_precond_create_from(c, o, &p));
    precond.reset(p);
  }

  /* Throw the library's message if `status`, of a call with get(), is an error. */
  ng_status verify(ng_status status) const { return check(status, ng_last_error(context.get())); }
  ng_precond *get() const { return precond.get(); }

  int warnings = 0;
  std::int64_t tasks = 0;

private:
  handle<ng_context> context; /* destroyed after precond: members are destroyed in reverse order */
  handle<ng_precond> precond;
};

/* ---- the network -----------------------------------------------------------------------------*/

struct parameter {
  tensor value, grad;
  template <class... A> explicit parameter(A... shape) : value(shape...), grad(shape...) {}
};

struct network {
  explicit network(tensor::layout how)
      : x(how, N, IN, SIDE, SIDE), y(how, N, MID, SIDE, SIDE), dy(how, N, MID, SIDE, SIDE),
        conv_w(how, MID, IN, K, K) {
    std::mt19937 draw(1);
    for (std::int64_t o = 0; o < MID; o++)
      for (std::int64_t i = 0; i < IN * K * K; i++)
        conv_w.value(o, i / (K * K), i / K % K, i % K) = draw_uniform(draw, 0.4f);
    for (std::int64_t i = 0; i < OUT * MID; i++)
      fc_w.value(i / MID, i % MID) = draw_uniform(draw, 0.5f);
  }

  /* Not a std:: distribution: its numbers differ between standard libraries. */
  static float draw_uniform(std::mt19937 &draw, float limit) {
    return limit * (static_cast<float>(draw() >> 8) / 8388608.0f - 1.0f);
  }

  /* Draw a batch: channel 0 has stripes along w (want 0) or h (want 1), of period 2 or 3, and noise; channel 1 has noise. */
  void make_batch(std::mt19937 &draw) {
    for (std::int64_t n = 0; n < N; n++) {
      want[n] = static_cast<int>(draw() >> 31);
      const auto period = 2 + static_cast<std::int64_t>(draw() >> 31);
      for (std::int64_t h = 0; h < SIDE; h++)
        for (std::int64_t w = 0; w < SIDE; w++) {
          const bool on = (want[n] == 0 ? h : w) % period == 0;
          x(n, 0, h, w) = (on ? 1.0f : -0.5f) + draw_uniform(draw, 0.3f);
          x(n, 1, h, w) = draw_uniform(draw, 0.5f);
        }
    }
  }

  /* Call visit(input row, input column, kernel row, kernel column) for the kernel positions inside the image. */
  template <class F> static void visit_window(std::int64_t h, std::int64_t w, F visit) {
    for (std::int64_t i = 0; i < K; i++)
      for (std::int64_t j = 0; j < K; j++)
        if (h + i >= 1 && h + i <= SIDE && w + j >= 1 && w + j <= SIDE)
          visit(h + i - 1, w + j - 1, i, j);
  }

  void forward() {
    mean.clear();
    for (std::int64_t n = 0; n < N; n++) {
      for (std::int64_t o = 0; o < MID; o++)
        for (std::int64_t h = 0; h < SIDE; h++)
          for (std::int64_t w = 0; w < SIDE; w++) {
            float s = conv_b.value(0, o);
            for (std::int64_t c = 0; c < IN; c++)
              visit_window(h, w, [&](auto r, auto q, auto i, auto j) {
                s += conv_w.value(o, c, i, j) * x(n, c, r, q);
              });
            y(n, o, h, w) = s > 0.0f ? s : 0.0f;
            mean(n, o) += y(n, o, h, w) / (SIDE * SIDE);
          }
      for (std::int64_t k = 0; k < OUT; k++) {
        score(n, k) = fc_b.value(0, k);
        for (std::int64_t o = 0; o < MID; o++)
          score(n, k) += fc_w.value(k, o) * mean(n, o);
      }
    }
  }

  /* Cross-entropy, mean over the samples, and all its derivatives. */
  double backward() {
    double loss = 0.0;
    for (auto *p : {&conv_w, &conv_b, &fc_w, &fc_b})
      p->grad.clear();
    for (std::int64_t n = 0; n < N; n++) {
      const float z = std::exp(score(n, 0)) + std::exp(score(n, 1));
      for (std::int64_t k = 0; k < OUT; k++) {
        const float p = std::exp(score(n, k)) / z;
        if (k == want[n]) loss -= std::log(static_cast<double>(p)) / N;
        dscore(n, k) = (p - (k == want[n] ? 1.0f : 0.0f)) / N;
        fc_b.grad(0, k) += dscore(n, k);
        for (std::int64_t o = 0; o < MID; o++)
          fc_w.grad(k, o) += dscore(n, k) * mean(n, o);
      }
      for (std::int64_t o = 0; o < MID; o++) {
        float back = 0.0f;
        for (std::int64_t k = 0; k < OUT; k++)
          back += dscore(n, k) * fc_w.value(k, o);
        for (std::int64_t h = 0; h < SIDE; h++)
          for (std::int64_t w = 0; w < SIDE; w++) {
            const float d = y(n, o, h, w) > 0.0f ? back / (SIDE * SIDE) : 0.0f;
            dy(n, o, h, w) = d;
            conv_b.grad(0, o) += d;
            for (std::int64_t c = 0; c < IN; c++)
              visit_window(h, w, [&](auto r, auto q, auto i, auto j) {
                conv_w.grad(o, c, i, j) += d * x(n, c, r, q);
              });
          }
      }
    }
    return loss;
  }

  tensor x, y, dy;
  tensor mean{N, MID}, score{N, OUT}, dscore{N, OUT};
  parameter conv_w, conv_b{std::int64_t{1}, MID}, fc_w{OUT, MID}, fc_b{std::int64_t{1}, OUT};
  int want[N] = {};
};

/* ---- training --------------------------------------------------------------------------------*/

/* Print each parameter; return whether the report's counters are those of a run of STEPS steps. */
bool print_report(const preconditioner &ng) {
  bool right = true;
  for (std::int32_t i = 0; i < ng_explain_count(ng.get()); i++) {
    auto row = make_struct<ng_explain_row>();
    auto layer = make_struct<ng_layer_report>();
    ng.verify(ng_explain(ng.get(), i, &row));
    ng.verify(ng_report_layer(ng.get(), row.index, &layer));
    std::printf("  %-12s %3lld numbers, %s, %s\n", row.name, static_cast<long long>(row.count),
                row.family, row.why);
    right = right && row.covered == 1 && layer.observations == 2 * STEPS;
  }
  auto report = make_struct<ng_report>();
  ng.verify(ng_report_read(ng.get(), &report));
  return right && report.steps == STEPS && report.skipped == 0 && ng.warnings == 0 && ng.tasks > 0;
}

std::vector<double> train(tensor::layout how, const char *name) {
  network net(how);
  const preconditioner ng;
  std::int32_t conv = -1, fc = -1;
  const std::int64_t kernel[2] = {K, K}, padding[2] = {1, 1};
  ng.verify(ng_add_conv2d(ng.get(), "conv", IN, MID, kernel, nullptr, padding, nullptr, 1, nullptr,
                          1, &conv));
  ng.verify(ng_add_linear(ng.get(), "fc", MID, OUT, 1, &fc));
  const std::vector<ng_binding> list = {
      {conv, NG_WEIGHT, net.conv_w.grad.view(), net.conv_w.value.view(), NG_HOLD},
      {conv, NG_BIAS, net.conv_b.grad.view(), net.conv_b.value.view(), NG_HOLD},
      {fc, NG_WEIGHT, net.fc_w.grad.view(), net.fc_w.value.view(), NG_HOLD},
      {fc, NG_BIAS, net.fc_b.grad.view(), net.fc_b.value.view(), NG_HOLD},
  };
  ng.verify(ng_bind(ng.get(), list.data(), static_cast<std::int32_t>(list.size())));
  ng.verify(ng_ready(ng.get()));

  auto sgd = make_default(ng_sgd_init);
  sgd.lr = 0.01;
  sgd.momentum = 0.9;
  std::vector<double> losses;
  std::mt19937 draw(2);
  for (int step = 0; step < STEPS; step++) {
    net.make_batch(draw);
    net.forward();
    losses.push_back(net.backward());
    ng.verify(ng_begin_samples(ng.get(), N, 1.0));
    ng.verify(ng_observe_input(ng.get(), conv, net.x.view(), NG_COPY));
    ng.verify(ng_observe_output_grad(ng.get(), conv, net.dy.view(), NG_COPY));
    ng.verify(ng_observe_input(ng.get(), fc, net.mean.view(), NG_COPY));
    ng.verify(ng_observe_output_grad(ng.get(), fc, net.dscore.view(), NG_COPY));
    ng.verify(ng_step_sgd(ng.get(), &sgd, 1));
  }
  std::printf("%s: loss %.4f, after %d steps %.4f\n", name, losses.front(), STEPS, losses.back());
  if (!print_report(ng)) throw std::runtime_error("the report has other counters than this run");
  return losses;
}

} // namespace

int main() {
  try {
    const auto last = train(ng_array_nhwc, "channels last"),
               first = train(ng_array_nchw, "channels first");
    /* The layouts may add sums in different orders, which changes the last bits of f32. */
    double apart = 0.0;
    for (std::size_t i = 0; i < last.size(); i++)
      apart = std::fmax(apart, std::fabs(last[i] - first[i]));
    std::printf("losses at most %.1e apart\n", apart);
    if (!(last.back() < 0.2 * last.front())) throw std::runtime_error("the loss did not fall");
    if (!(apart < 1e-3)) throw std::runtime_error("the two layouts do not agree");
    return EXIT_SUCCESS;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "30_cpp: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
