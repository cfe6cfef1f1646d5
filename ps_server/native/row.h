// What a row is in memory.
//
//   RowLayout            | weights [dim] | state [state_per_weight][dim] | padding |   floats
//   RowMeta (elsewhere)  | num_pushes | step |
//
// A pull reads the weights alone; what only a push changes lies behind the rows
// of a page (row_list.h), so that a pull does not load it.

#ifndef PS_SERVER_NATIVE_ROW_H_
#define PS_SERVER_NATIVE_ROW_H_

#include <cstddef>
#include <cstdint>

namespace ps_server {

struct RowMeta {
  uint32_t num_pushes;
  uint32_t step;  // the largest step of a push that touched the row, 0 before the first
};

// Where a row is: weights [dim], its state behind them, and its meta.
struct RowRef {
  float* weights;
  RowMeta* meta;
};

class RowLayout {
 public:
  RowLayout(size_t dim, size_t state_per_weight) : dim_(dim), num_state_(dim * state_per_weight) {}

  size_t dim() const { return dim_; }

  // Floats of state, at weights + dim().
  size_t num_state() const { return num_state_; }

  // Bytes from row to row. A row of up to 64 bytes takes a power of two, so that
  // it never crosses a cache line; a longer one a multiple of 32, which wastes
  // little and crosses at most one line more than it must.
  size_t stride() const {
    const size_t size = (dim_ + num_state_) * sizeof(float);
    if (size > 64) return (size + 31) / 32 * 32;
    size_t stride = sizeof(float);
    while (stride < size) stride *= 2;
    return stride;
  }

 private:
  size_t dim_;
  size_t num_state_;
};

// Rows as columns, aligned by position: keys [n], weights [n, dim], state
// [n, num_state], num_pushes [n] and steps [n]. Owns nothing.
struct RowColumns {
  uint64_t* keys;
  float* weights;
  float* state;
  uint32_t* num_pushes;
  uint64_t* steps;
};

struct ConstRowColumns {
  const uint64_t* keys;
  const float* weights;
  const float* state;
  const uint32_t* num_pushes;
  const uint64_t* steps;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_ROW_H_
