// A batch of keys in the order of their stripes, so that a batch takes each
// stripe's lock once.
//
// Owns its copy of the hashes. Immutable after construction.
//
// Invariants:
//   1. The items of a stripe are adjacent and keep the order of the batch.

#ifndef PS_SERVER_NATIVE_PARTITION_H_
#define PS_SERVER_NATIVE_PARTITION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ps_server {

// One key of a batch: its hash, and its position in the caller's arrays.
struct Item {
  uint64_t hash;
  uint32_t position;
};

// Adjacent items.
struct Items {
  const Item* first;
  size_t size;
};

class Partition {
 public:
  // Throws std::invalid_argument if n is 2^32 or more.
  Partition(const uint64_t* keys, size_t n, int stripe_bits);

  Items OfStripe(size_t stripe) const {
    return {items_.get() + starts_[stripe], starts_[stripe + 1] - starts_[stripe]};
  }

  // Those of all stripes, in their order.
  Items All() const { return {items_.get(), starts_.back()}; }

  // Where the items of a stripe begin among those of all.
  size_t StartOfStripe(size_t stripe) const { return starts_[stripe]; }

 private:
  std::unique_ptr<Item[]> items_;
  std::vector<size_t> starts_;  // [num_stripes + 1]
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_PARTITION_H_
