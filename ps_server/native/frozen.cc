#include "frozen.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "hash.h"
#include "partition.h"
#include "turns.h"

namespace ps_server {

Frozen::Frozen(const RowLayout& layout, const Stripes& stripes, int64_t last_step,
               const BucketRange& buckets)
    : layout_(layout), stripes_(stripes), last_step_(last_step), buckets_(buckets) {
  rows_.reserve(stripes.size());
  for (const auto& stripe : stripes) rows_.push_back(stripe->Freeze(&arena_, buckets));
}

void Frozen::List() {
  for (size_t i = buckets_.first() / kBucketsPerGroup; i * kBucketsPerGroup < buckets_.end(); ++i) {
    groups_[i].reserve(num_rows() / kNumGroups * 17 / 16);
  }
  std::vector<uint64_t> hashes;
  // A row that goes meanwhile is in the first list, or among the copies by the second.
  for (const bool is_kept : {false, true}) {
    IndexCopies();
    TakeTurns(stripes_.size(), [&](size_t i, size_t segment) {
      hashes.clear();
      const bool has_more = stripes_[i]->List(*rows_[i], is_kept, segment, buckets_, &hashes);
      for (uint64_t hash : hashes) {
        groups_[BucketOfHash(hash) / kBucketsPerGroup].push_back(hash);
      }
      return has_more;
    });
  }
}

void Frozen::IndexCopies() const {
  TakeTurns(stripes_.size(), [&](size_t i, size_t) {
    return stripes_[i]->IndexCopies(rows_[i].get(), kRowsPerLock);
  });
}

std::vector<uint64_t> Frozen::KeysOf(const BucketRange& buckets) {
  std::vector<uint64_t> keys;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!buckets_.Has(buckets)) {
    throw std::invalid_argument(
        "rows are exported before they are released, and those of buckets below " +
        std::to_string(buckets_.first()) +
        " are, got first_bucket=" + std::to_string(buckets.first()));
  }
  if (!is_listed_) List();
  is_listed_ = true;
  for (size_t i = buckets.first() / kBucketsPerGroup; i * kBucketsPerGroup < buckets.end(); ++i) {
    for (uint64_t hash : groups_[i]) {
      if (buckets.HasBucketOf(hash)) keys.push_back(KeyOfHash(hash));
    }
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void Frozen::Export(int64_t first_bucket, int64_t end_bucket,
                    const std::function<RowColumns(size_t)>& allocate) {
  const std::vector<uint64_t> keys = KeysOf(BucketRange(first_bucket, end_bucket));
  const RowColumns out = allocate(keys.size());
  int stripe_bits = 0;
  while (size_t{1} << stripe_bits < stripes_.size()) ++stripe_bits;
  const Partition partition(keys.data(), keys.size(), stripe_bits);
  IndexCopies();
  TakeTurns(stripes_.size(), [&](size_t i, size_t round) {
    const Items items = partition.OfStripe(i);
    const size_t first = round * kRowsPerLock;
    if (first >= items.size) return false;
    const size_t size = std::min(items.size - first, kRowsPerLock);
    stripes_[i]->Export(rows_[i].get(), {items.first + first, size}, out);
    return first + size < items.size;
  });
}

void Frozen::ReleaseBuckets(int64_t end_bucket) {
  std::lock_guard<std::mutex> lock(mutex_);
  const BucketRange gone(0, end_bucket);
  if (gone.end() <= buckets_.first()) return;
  buckets_ = BucketRange(std::min(gone.end(), buckets_.end()), buckets_.end());
  for (size_t i = 0; i < stripes_.size(); ++i) stripes_[i]->Narrow(rows_[i].get(), buckets_);
  for (size_t i = 0; i < gone.end() / kBucketsPerGroup; ++i)
    std::vector<uint64_t>().swap(groups_[i]);
}

size_t Frozen::num_rows() const {
  size_t num_rows = 0;
  for (const auto& rows : rows_) num_rows += rows->num_rows();
  return num_rows;
}

size_t Frozen::memory_bytes() const {
  size_t bytes = sizeof(*this) + arena_.BytesAllocated();
  for (size_t i = 0; i < stripes_.size(); ++i) bytes += stripes_[i]->OwnBytes(*rows_[i]);
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& group : groups_) bytes += group.capacity() * sizeof(group[0]);
  return bytes;
}

}  // namespace ps_server
