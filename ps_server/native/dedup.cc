#include "dedup.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "hash.h"

namespace ps_server {

Dedup::Dedup(const uint64_t* keys, size_t n, const uint16_t* owners, size_t num_owners,
             int64_t* inverse)
    : counts_(num_owners) {
  if (n > UINT32_MAX) throw std::invalid_argument("a batch has fewer than 2**32 keys");
  const size_t last_owner = *std::max_element(owners, owners + kNumBuckets);
  if (last_owner >= num_owners) {
    throw std::invalid_argument("owners are below num_owners, got owner " +
                                std::to_string(last_owner) +
                                ", num_owners=" + std::to_string(num_owners));
  }
  FindUnique(keys, n, inverse);
  if (num_owners == 1) {
    counts_[0] = static_cast<int64_t>(hashes_.size());
  } else {
    GroupByOwner(owners, inverse, n);
  }
}

void Dedup::CopyUnique(uint64_t* unique) const {
  for (size_t i = 0; i < hashes_.size(); ++i) {
    unique[positions_.empty() ? i : positions_[i]] = KeyOfHash(hashes_[i]);
  }
}

// Numbers the keys in the order of their first occurrence.
void Dedup::FindUnique(const uint64_t* keys, size_t n, int64_t* inverse) {
  constexpr size_t kAhead = 16;
  size_t capacity = 16;
  while (capacity < 2 * n) capacity *= 2;
  const size_t mask = capacity - 1;
  std::vector<uint32_t> table(capacity);  // number + 1, 0 where free
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(&table[HashOfKey(keys[i + kAhead]) & mask]);
    const uint64_t hash = HashOfKey(keys[i]);
    size_t at = hash & mask;
    while (table[at] != 0 && hashes_[table[at] - 1] != hash) at = (at + 1) & mask;
    if (table[at] == 0) {
      hashes_.push_back(hash);
      table[at] = static_cast<uint32_t>(hashes_.size());
    }
    inverse[i] = table[at] - 1;
  }
}

// A counting sort of the unique keys by owner.
void Dedup::GroupByOwner(const uint16_t* owners, int64_t* inverse, size_t n) {
  for (uint64_t hash : hashes_) ++counts_[owners[BucketOfHash(hash)]];
  std::vector<uint32_t> next(counts_.size());
  for (size_t i = 1; i < next.size(); ++i) {
    next[i] = next[i - 1] + static_cast<uint32_t>(counts_[i - 1]);
  }
  positions_.resize(hashes_.size());
  for (size_t i = 0; i < hashes_.size(); ++i) {
    positions_[i] = next[owners[BucketOfHash(hashes_[i])]]++;
  }
  for (size_t i = 0; i < n; ++i) inverse[i] = positions_[static_cast<size_t>(inverse[i])];
}

}  // namespace ps_server
