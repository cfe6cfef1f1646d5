#include "partition.h"

#include <stdexcept>

#include "hash.h"

namespace ps_server {

// A counting sort. The hash is cheaper to compute twice than to keep.
Partition::Partition(const uint64_t* keys, size_t n, int stripe_bits)
    : items_(new Item[n]), starts_((size_t{1} << stripe_bits) + 1) {
  if (n > UINT32_MAX) throw std::invalid_argument("a batch has fewer than 2**32 keys");
  const size_t num_stripes = starts_.size() - 1;
  for (size_t i = 0; i < n; ++i) ++starts_[StripeOfHash(HashOfKey(keys[i]), stripe_bits) + 1];
  for (size_t stripe = 0; stripe < num_stripes; ++stripe) starts_[stripe + 1] += starts_[stripe];

  std::vector<size_t> next(starts_.begin(), starts_.end() - 1);
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = HashOfKey(keys[i]);
    items_[next[StripeOfHash(hash, stripe_bits)]++] = {hash, static_cast<uint32_t>(i)};
  }
}

}  // namespace ps_server
