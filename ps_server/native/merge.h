// The gradients of a push, those of equal keys summed.
//
// The common push has no key twice: then nothing is copied, and the pass costs
// one probe of a small hash set a key. Owns the sums otherwise. Immutable after
// construction.
//
// Invariants:
//   1. No hash is twice among items().
//   2. gradient(item) is the float32 sum over the items of its hash, added in
//      the order of the batch, as Paddle merges a sparse gradient.

#ifndef PS_SERVER_NATIVE_MERGE_H_
#define PS_SERVER_NATIVE_MERGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition.h"

namespace ps_server {

class Merge {
 public:
  // `gradients` is [batch, dim]; row `item.position` is that of an item.
  // REQUIRES: `items` and `gradients` outlive the merge.
  Merge(Items items, const float* gradients, size_t dim);

  Items items() const { return items_; }

  // Whether a key was there twice, so that items() are others than those given.
  bool has_sums() const { return !merged_.empty(); }

  const float* gradient(const Item& item) const { return gradients_ + item.position * dim_; }

 private:
  Items items_;
  const float* gradients_;
  size_t dim_;
  std::vector<Item> merged_;  // used, as sums_, if a key is there twice
  std::vector<float> sums_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_MERGE_H_
