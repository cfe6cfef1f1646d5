#include "merge.h"

namespace ps_server {
namespace {

// Fills first[i] with the first item of equal hash and returns whether all are their own first.
bool FindFirsts(Items items, std::vector<uint32_t>* first) {
  size_t capacity = 16;
  while (capacity < 2 * items.size) capacity *= 2;
  std::vector<uint32_t> table(capacity);  // item + 1, 0 where free
  bool is_unique = true;
  for (uint32_t i = 0; i < items.size; ++i) {
    const uint64_t hash = items.first[i].hash;
    size_t at = hash & (capacity - 1);
    while (table[at] != 0 && items.first[table[at] - 1].hash != hash) {
      at = (at + 1) & (capacity - 1);
    }
    if (table[at] == 0) {
      table[at] = i + 1;
    } else {
      is_unique = false;
    }
    (*first)[i] = table[at] - 1;
  }
  return is_unique;
}

}  // namespace

Merge::Merge(Items items, const float* gradients, size_t dim)
    : items_(items), gradients_(gradients), dim_(dim) {
  std::vector<uint32_t> first(items.size);
  if (FindFirsts(items, &first)) return;

  std::vector<uint32_t> merged_of(items.size);  // of items that are a first
  for (uint32_t i = 0; i < items.size; ++i) {
    const float* const gradient = gradients + items.first[i].position * dim;
    if (first[i] == i) {
      merged_of[i] = static_cast<uint32_t>(merged_.size());
      merged_.push_back({items.first[i].hash, merged_of[i]});
      sums_.insert(sums_.end(), gradient, gradient + dim);
    } else {
      float* const sum = sums_.data() + merged_of[first[i]] * dim;
      for (size_t d = 0; d < dim; ++d) sum[d] += gradient[d];
    }
  }
  items_ = {merged_.data(), merged_.size()};
  gradients_ = sums_.data();
}

}  // namespace ps_server
