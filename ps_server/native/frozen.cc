#include "frozen.h"

#include <algorithm>

#include "bucket_range.h"
#include "partition.h"
#include "turns.h"

namespace ps_server {

Frozen::Frozen(const RowLayout& layout, const Stripes& stripes, int64_t last_step)
    : layout_(layout), stripes_(stripes), last_step_(last_step) {
  rows_.reserve(stripes.size());
  for (const auto& stripe : stripes) rows_.push_back(stripe->Freeze(&arena_));
}

void Frozen::Export(int64_t first_bucket, int64_t end_bucket,
                    const std::function<RowColumns(size_t)>& allocate) const {
  constexpr size_t kRowsPerLock = 256;
  const BucketRange buckets(first_bucket, end_bucket);
  std::vector<uint64_t> keys;
  // A row that changes meanwhile is in the first list, or among the copies by the second.
  for (const bool is_kept : {false, true}) {
    TakeTurns(stripes_.size(), [&](size_t i, size_t segment) {
      return stripes_[i]->List(*rows_[i], is_kept, segment, buckets, &keys);
    });
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  const RowColumns out = allocate(keys.size());
  int stripe_bits = 0;
  while (size_t{1} << stripe_bits < stripes_.size()) ++stripe_bits;
  const Partition partition(keys.data(), keys.size(), stripe_bits);
  TakeTurns(stripes_.size(), [&](size_t i, size_t round) {
    const Items items = partition.OfStripe(i);
    const size_t first = round * kRowsPerLock;
    if (first >= items.size) return false;
    const size_t size = std::min(items.size - first, kRowsPerLock);
    stripes_[i]->Export(*rows_[i], {items.first + first, size}, out);
    return first + size < items.size;
  });
}

size_t Frozen::num_rows() const {
  size_t num_rows = 0;
  for (const auto& rows : rows_) num_rows += rows->num_rows();
  return num_rows;
}

size_t Frozen::memory_bytes() const {
  size_t bytes = sizeof(*this) + arena_.BytesAllocated();
  for (size_t i = 0; i < stripes_.size(); ++i) bytes += stripes_[i]->OwnBytes(*rows_[i]);
  return bytes;
}

}  // namespace ps_server
