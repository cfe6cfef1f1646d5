#include "merge.h"

namespace ps_server {
namespace {

// A hash set of items, by open addressing.
class ItemSet {
 public:
  explicit ItemSet(Items items) : items_(items) {
    size_t capacity = 16;
    while (capacity < 4 * items.size) capacity *= 2;
    mask_ = capacity - 1;
    table_.resize(capacity);
  }

  // Returns the item of equal hash that was added first: `i`, which is added, if there is none.
  uint32_t FirstOf(uint32_t i) {
    const uint64_t hash = items_.first[i].hash;
    size_t at = hash & mask_;
    for (; table_[at] != 0; at = (at + 1) & mask_) {
      if (items_.first[table_[at] - 1].hash == hash) return table_[at] - 1;
    }
    table_[at] = i + 1;
    return i;
  }

 private:
  Items items_;
  size_t mask_;
  std::vector<uint32_t> table_;  // item + 1, 0 where free
};

bool IsUnique(Items items) {
  ItemSet set(items);
  for (uint32_t i = 0; i < items.size; ++i) {
    if (set.FirstOf(i) != i) return false;
  }
  return true;
}

}  // namespace

Merge::Merge(Items items, const float* gradients, size_t dim)
    : items_(items), gradients_(gradients), dim_(dim) {
  if (IsUnique(items)) return;

  ItemSet set(items);
  std::vector<uint32_t> merged_of(items.size);  // of items that are a first
  for (uint32_t i = 0; i < items.size; ++i) {
    const float* const gradient = gradients + items.first[i].position * dim;
    const uint32_t first = set.FirstOf(i);
    if (first == i) {
      merged_of[i] = static_cast<uint32_t>(merged_.size());
      merged_.push_back({items.first[i].hash, merged_of[i]});
      sums_.insert(sums_.end(), gradient, gradient + dim);
    } else {
      float* const sum = sums_.data() + merged_of[first] * dim;
      for (size_t d = 0; d < dim; ++d) sum[d] += gradient[d];
    }
  }
  items_ = {merged_.data(), merged_.size()};
  gradients_ = sums_.data();
}

}  // namespace ps_server
