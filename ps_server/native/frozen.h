// The rows of a table as they were when it was frozen, while the table goes on.
//
// Owns the copies of the rows that have changed since, in an arena of its own, and
// shares what a Clear takes from the table. Thread-safe. Lock order: its own, a stripe's,
// the arena's.
//
// Invariants:
//   1. What Export returns is a function of the rows at the freeze alone, whatever
//      is pulled, pushed, imported, dropped or cleared meanwhile.
//   2. Each stripe has its own moment, when its lock was held: the caller keeps
//      changes out of the freeze if it is to lie between two of them.

#ifndef PS_SERVER_NATIVE_FROZEN_H_
#define PS_SERVER_NATIVE_FROZEN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "bucket_range.h"
#include "row.h"
#include "stripe.h"

namespace ps_server {

class Frozen {
 public:
  using Stripes = std::vector<std::unique_ptr<Stripe>>;

  // Freezes the rows of some buckets, one stripe after the other, until it is destroyed.
  // REQUIRES: `stripes`, as many as a power of two, outlives it.
  Frozen(const RowLayout& layout, const Stripes& stripes, int64_t last_step,
         const BucketRange& buckets);

  const RowLayout& layout() const { return layout_; }

  // Copies the rows of buckets [first_bucket, end_bucket), in the order of their
  // keys, to what `allocate(n)` returns for n rows. The first call reads the whole
  // index, and keeps the keys. Locks are held for microseconds; `allocate` is called
  // with none held. Throws std::invalid_argument on a bad range, or one that was released.
  void Export(int64_t first_bucket, int64_t end_bucket,
              const std::function<RowColumns(size_t)>& allocate);

  // Lets go the rows of buckets below `end_bucket`, so that they are copied no more, and
  // their keys. An Export of them must have ended. Throws std::invalid_argument on a bad bucket.
  void ReleaseBuckets(int64_t end_bucket);

  // Rows that the table had, and its last step.
  size_t num_rows() const;
  int64_t last_step() const { return last_step_; }

  // Bytes of the copies so far, of their index, of what tells who has one, and of the keys.
  size_t memory_bytes() const;

 private:
  static constexpr uint32_t kNumGroups = 64;
  static constexpr uint32_t kBucketsPerGroup = kNumBuckets / kNumGroups;
  static constexpr size_t kRowsPerLock = 256;

  // Returns the keys of frozen rows, in order.
  std::vector<uint64_t> KeysOf(const BucketRange& buckets);

  void List();  // REQUIRES: mutex_
  void IndexCopies() const;

  const RowLayout layout_;
  const Stripes& stripes_;
  const int64_t last_step_;
  mutable std::mutex mutex_;
  BucketRange buckets_;     // guarded by mutex_; those that are not let go
  bool is_listed_ = false;  // guarded by mutex_
  // Guarded by mutex_; the hashes of the keys of some buckets each, in no order, some twice.
  std::array<std::vector<uint64_t>, kNumGroups> groups_;
  Arena arena_;                                        // of all copies
  std::vector<std::unique_ptr<Stripe::Frozen>> rows_;  // aligned with stripes_
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_FROZEN_H_
