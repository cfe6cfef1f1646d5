// How a gradient changes a row.
//
// A value, immutable, hence thread-safe. All arithmetic is in float32, in the
// order of Paddle's CPU kernels for `sparse=True` gradients, so that a table
// and a paddle.nn.Embedding move together: SGD and Adagrad to the bit, Adam to
// the last bits. (Paddle 3.3's own sparse Adam corrects the bias of step t as
// if it were step t + 1, on CPU alone: selected_rows/cpu/adam_kernel.cc raises
// the powers in place before it reads them. The table does not.)
//
// Invariants:
//   1. The result of a row is a function of (weights, state, gradient, step)
//      alone: no fused multiply-add (-ffp-contract=off), so the bits are equal
//      on every CPU and under every compiler, whatever the vector width.
//   2. A row is weights [dim], then state [state_per_weight][dim], adjacent.
//      Adagrad's state is its accumulator; Adam's are m, then v.

#ifndef PS_SERVER_NATIVE_OPTIMIZER_H_
#define PS_SERVER_NATIVE_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>

namespace ps_server {

class Optimizer {
 public:
  static Optimizer Sgd(double learning_rate);
  static Optimizer Adagrad(double learning_rate, double epsilon, double initial_accumulator);
  // Throws std::invalid_argument unless 0 <= beta1, beta2 < 1 in float32.
  static Optimizer Adam(double learning_rate, double beta1, double beta2, double epsilon);

  // Floats of state that a row keeps beside each weight.
  size_t state_per_weight() const { return static_cast<size_t>(kind_); }

  // What every float of a new row's state is.
  float initial_state() const { return initial_state_; }

  // The optimizer at one update of the table: Adam's bias correction is known.
  class Update {
   public:
    // Applies `gradient` [dim] to `row`. REQUIRES: they do not overlap.
    void Apply(float* row, const float* gradient, size_t dim) const;

   private:
    friend class Optimizer;
    const Optimizer* optimizer_;
    float learning_rate_;
    float epsilon_;
  };

  // REQUIRES: the optimizer outlives the update; step >= 1.
  Update At(uint64_t step) const;

 private:
  enum class Kind { kSgd = 0, kAdagrad = 1, kAdam = 2 };

  explicit Optimizer(Kind kind) : kind_(kind) {}

  Kind kind_;
  float learning_rate_ = 0;
  float epsilon_ = 0;
  float initial_state_ = 0;
  float beta1_ = 0;
  float beta2_ = 0;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_OPTIMIZER_H_
