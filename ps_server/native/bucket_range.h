// The buckets from one to before another: whose rows are exported or dropped.

#ifndef PS_SERVER_NATIVE_BUCKET_RANGE_H_
#define PS_SERVER_NATIVE_BUCKET_RANGE_H_

#include <cstdint>
#include <stdexcept>
#include <string>

#include "hash.h"

namespace ps_server {

class BucketRange {
 public:
  // Buckets [first, end). Throws std::invalid_argument unless 0 <= first <= end <= kNumBuckets.
  BucketRange(int64_t first, int64_t end) {
    if (first < 0 || first > end || end > int64_t{kNumBuckets}) {
      throw std::invalid_argument("buckets are a range within [0, " + std::to_string(kNumBuckets) +
                                  "), got first_bucket=" + std::to_string(first) +
                                  ", end_bucket=" + std::to_string(end));
    }
    first_ = static_cast<uint32_t>(first);
    end_ = static_cast<uint32_t>(end);
  }

  uint32_t first() const { return first_; }
  uint32_t end() const { return end_; }

  // Whether the buckets of another range are all within this one.
  bool Has(const BucketRange& other) const {
    return other.first_ == other.end_ || (first_ <= other.first_ && other.end_ <= end_);
  }

  bool HasBucketOf(uint64_t hash) const {
    const uint32_t bucket = BucketOfHash(hash);
    return first_ <= bucket && bucket < end_;
  }

 private:
  uint32_t first_, end_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_BUCKET_RANGE_H_
