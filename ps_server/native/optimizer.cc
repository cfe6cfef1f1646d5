#include "optimizer.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace ps_server {
namespace {

// The loops below are separate functions with __restrict because g++ does not
// vectorise them where a row and its gradient might overlap (2.4 times slower).

void SgdRow(float* __restrict w, const float* __restrict g, size_t dim, float learning_rate) {
  for (size_t i = 0; i < dim; ++i) w[i] -= learning_rate * g[i];
}

void AdagradRow(float* __restrict w, float* __restrict a, const float* __restrict g, size_t dim,
                float learning_rate, float epsilon) {
  for (size_t i = 0; i < dim; ++i) {
    const float accumulated = a[i] + g[i] * g[i];
    a[i] = accumulated;
    w[i] -= learning_rate * g[i] / (std::sqrt(accumulated) + epsilon);
  }
}

void AdamRow(float* __restrict w, float* __restrict m, float* __restrict v,
             const float* __restrict g, size_t dim, float learning_rate, float beta1, float beta2,
             float epsilon) {
  for (size_t i = 0; i < dim; ++i) {
    const float mean = beta1 * m[i] + (1 - beta1) * g[i];
    const float square = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    m[i] = mean;
    v[i] = square;
    w[i] -= learning_rate * (mean / (std::sqrt(square) + epsilon));
  }
}

// x^n by squaring, in double and without libm, so that its bits are the same everywhere.
double Power(double x, uint64_t n) {
  double power = 1;
  for (; n > 0; n >>= 1, x *= x) {
    if (n & 1) power *= x;
  }
  return power;
}

// A decay that rounds to 1 would divide by 0 in the bias correction.
float Decay(const char* name, double value) {
  const float decay = static_cast<float>(value);
  if (decay >= 0 && decay < 1) return decay;
  throw std::invalid_argument(std::string("a decay is in [0, 1) in float32, got ") + name + "=" +
                              std::to_string(value));
}

}  // namespace

Optimizer Optimizer::Sgd(double learning_rate) {
  Optimizer optimizer(Kind::kSgd);
  optimizer.learning_rate_ = static_cast<float>(learning_rate);
  return optimizer;
}

Optimizer Optimizer::Adagrad(double learning_rate, double epsilon, double initial_accumulator) {
  Optimizer optimizer(Kind::kAdagrad);
  optimizer.learning_rate_ = static_cast<float>(learning_rate);
  optimizer.epsilon_ = static_cast<float>(epsilon);
  optimizer.initial_state_ = static_cast<float>(initial_accumulator);
  return optimizer;
}

Optimizer Optimizer::Adam(double learning_rate, double beta1, double beta2, double epsilon) {
  Optimizer optimizer(Kind::kAdam);
  optimizer.learning_rate_ = static_cast<float>(learning_rate);
  optimizer.epsilon_ = static_cast<float>(epsilon);
  optimizer.beta1_ = Decay("beta1", beta1);
  optimizer.beta2_ = Decay("beta2", beta2);
  return optimizer;
}

Optimizer::Update Optimizer::At(uint64_t step) const {
  Update update;
  update.optimizer_ = this;
  update.learning_rate_ = learning_rate_;
  update.epsilon_ = epsilon_;
  if (kind_ == Kind::kAdam) {
    // Paddle keeps the powers as products of float32 betas; these are the same
    // powers without the products' rounding.
    const float power1 = static_cast<float>(Power(beta1_, step));
    const float power2 = static_cast<float>(Power(beta2_, step));
    update.learning_rate_ *= std::sqrt(1 - power2) / (1 - power1);
    update.epsilon_ *= std::sqrt(1 - power2);
  }
  return update;
}

void Optimizer::Update::Apply(float* const* rows, const float* const* gradients, size_t n,
                              size_t dim) const {
  switch (optimizer_->kind_) {
    case Kind::kSgd:
      for (size_t i = 0; i < n; ++i) SgdRow(rows[i], gradients[i], dim, learning_rate_);
      break;
    case Kind::kAdagrad:
      for (size_t i = 0; i < n; ++i) {
        AdagradRow(rows[i], rows[i] + dim, gradients[i], dim, learning_rate_, epsilon_);
      }
      break;
    case Kind::kAdam:
      for (size_t i = 0; i < n; ++i) {
        AdamRow(rows[i], rows[i] + dim, rows[i] + 2 * dim, gradients[i], dim, learning_rate_,
                optimizer_->beta1_, optimizer_->beta2_, epsilon_);
      }
      break;
  }
}

}  // namespace ps_server
