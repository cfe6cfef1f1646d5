#include "optimizer.h"

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

struct Settings {
  int kind;  // 0 SGD, 1 Adagrad, 2 Adam
  double learning_rate, epsilon, initial, beta1, beta2;

  Optimizer Make() const {
    if (kind == 0) return Optimizer::Sgd(learning_rate);
    if (kind == 1) return Optimizer::Adagrad(learning_rate, epsilon, initial);
    return Optimizer::Adam(learning_rate, beta1, beta2, epsilon);
  }
};

const Settings kSettings[] = {{0, 0.1, 0, 0, 0, 0},
                              {1, 0.1, 1e-6, 0, 0, 0},
                              {1, 0.3, 1e-3, 0.1, 0, 0},
                              {2, 0.001, 1e-8, 0, 0.9, 0.999},
                              {2, 0.1, 1e-3, 0, 0.0, 0.5}};

// One weight by the formula, in double; s holds its state.
void Move(const Settings& by, double step, double g, double* w, double* s) {
  if (by.kind == 0) {
    *w -= by.learning_rate * g;
  } else if (by.kind == 1) {
    s[0] += g * g;
    *w -= by.learning_rate * g / (std::sqrt(s[0]) + by.epsilon);
  } else {
    s[0] = by.beta1 * s[0] + (1 - by.beta1) * g;
    s[1] = by.beta2 * s[1] + (1 - by.beta2) * g * g;
    const double mean = s[0] / (1 - std::pow(by.beta1, step));
    const double square = s[1] / (1 - std::pow(by.beta2, step));
    *w -= by.learning_rate * mean / (std::sqrt(square) + by.epsilon);
  }
}

bool IsNear(double found, double expected, double scale) {
  return std::abs(found - expected) <= 2e-5 * scale;
}

TEST(RowsMoveByTheFormulaInDouble) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  for (const Settings& by : kSettings) {
    const Optimizer optimizer = by.Make();
    CHECK_EQ(optimizer.state_per_weight(), static_cast<size_t>(by.kind));
    CHECK_EQ(optimizer.initial_state(), static_cast<float>(by.initial));
    for (size_t dim : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 70}) {
      const size_t width = dim * (1 + optimizer.state_per_weight()), num_rows = 19;
      constexpr float kCanary = 1234.5f;
      std::vector<float> rows(num_rows * (width + 1), kCanary);
      std::vector<double> weights(num_rows * dim), states(2 * num_rows * dim, by.initial);
      std::vector<float*> row_of;
      for (size_t r = 0; r < num_rows; ++r) {
        row_of.push_back(&rows[r * (width + 1)]);
        for (size_t i = 0; i < width; ++i) {
          row_of[r][i] = i < dim ? normal(random) : optimizer.initial_state();
        }
        for (size_t i = 0; i < dim; ++i) weights[r * dim + i] = row_of[r][i];
      }
      for (uint64_t step : {1, 2, 3, 50}) {
        std::vector<float> gradients(num_rows * dim);
        for (float& gradient : gradients) gradient = normal(random);
        const Optimizer::Update update = optimizer.At(step);
        for (size_t r = 0; r < num_rows; ++r) update.Apply(row_of[r], &gradients[r * dim], dim);
        for (size_t i = 0; i < num_rows * dim; ++i) {
          Move(by, static_cast<double>(step), gradients[i], &weights[i], &states[2 * i]);
        }
      }
      for (size_t r = 0; r < num_rows; ++r) {
        for (size_t i = 0; i < dim; ++i) {
          CHECK(IsNear(row_of[r][i], weights[r * dim + i], 1 + std::abs(weights[r * dim + i])));
          for (int s = 0; s < by.kind; ++s) {
            const double expected = states[2 * (r * dim + i) + static_cast<size_t>(s)];
            CHECK(IsNear(row_of[r][dim * static_cast<size_t>(s + 1) + i], expected,
                         1 + std::abs(expected)));
          }
        }
        CHECK_EQ(row_of[r][width], kCanary);
      }
    }
  }
}

TEST(AdamAtTheLastStepIsFinite) {
  const Optimizer optimizer = Optimizer::Adam(0.1, 0.9, 0.999, 1e-8);
  float row[3] = {1, 0, 0};
  const float gradient = 1;
  optimizer.At(UINT32_MAX).Apply(row, &gradient, 1);
  CHECK(std::abs(row[0] - (1 - 0.1 * 0.1 / std::sqrt(0.001))) < 1e-4);
}

TEST(DecaysThatRoundToOneAreRefused) {
  for (double bad : {1.0, 1 - 1e-12, -0.1, std::nan("")}) {
    CHECK_THROWS(std::invalid_argument, Optimizer::Adam(0.1, bad, 0.9, 1e-8));
    CHECK_THROWS(std::invalid_argument, Optimizer::Adam(0.1, 0.9, bad, 1e-8));
  }
}

}  // namespace
}  // namespace ps_server
