// A table: rows by key, spread over stripes.
//
// Owns its rows. Thread-safe: any calls may run at the same time; each row is
// read and written whole, a batch is not one transaction. A row's stripe is a
// function of its key, so two pushes of one key both count.
//
// Lock order: clear_mutex_, one stripe's, the arena's. No call holds two stripes',
// nor that of the recent pulls with another.
//
// Invariants:
//   1. The weights of a new row are a function of (seed, key) alone.
//   2. What an export returns is a function of the rows alone: not of the order of
//      calls, nor of the number of stripes.

#ifndef PS_SERVER_NATIVE_TABLE_H_
#define PS_SERVER_NATIVE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "bucket_range.h"
#include "frozen.h"
#include "recent_pulls.h"
#include "row.h"
#include "stripe.h"

namespace ps_server {

class Table {
 public:
  static constexpr size_t kMaxStripes = 1024;

  // Throws std::invalid_argument unless num_stripes is a power of two up to kMaxStripes.
  Table(const RowRules& rules, size_t num_stripes);

  const RowLayout& layout() const { return rules_.layout; }

  // Copies the weights of keys [n] to out [n, dim]; a key may be there twice. Of
  // a missing key, those that its row would start with. With `insert`, the row
  // is made, and the push of the same keys is cheaper for it.
  void Pull(const uint64_t* keys, size_t n, bool insert, float* out);

  // Applies gradients [n, dim] of update number `step`; those of equal keys are
  // summed first. Missing rows are made. Throws std::invalid_argument unless
  // 1 <= step <= kMaxStep.
  void Push(const uint64_t* keys, size_t n, const float* gradients, int64_t step);

  // Makes or overwrites n rows. Throws std::invalid_argument if a step is above kMaxStep.
  void Import(const ConstRowColumns& rows, size_t n);

  // The rows as they are now, which stay so while the table goes on: a row that changes
  // is copied first. Takes microseconds a stripe, whatever the number of rows. It is
  // a moment between two changes if the caller keeps changes out of this call.
  // REQUIRES: what is returned goes before the table does.
  std::unique_ptr<Frozen> Freeze() const;

  // Freezes the buckets for one Export. See there.
  void Export(int64_t first_bucket, int64_t end_bucket,
              const std::function<RowColumns(size_t)>& allocate) const {
    Frozen(rules_.layout, stripes_, last_step(), BucketRange(first_bucket, end_bucket))
        .Export(first_bucket, end_bucket, allocate);
  }

  // Drops the rows of buckets [first_bucket, end_bucket) and leaves their memory to new
  // ones. Locks are held for microseconds. Rows of these buckets that are made meanwhile
  // may stay. Throws std::invalid_argument on a bad range.
  void DropBuckets(int64_t first_bucket, int64_t end_bucket);

  // Drops all rows, stripe by stripe, and returns their memory, once they are frozen
  // no more; the last step is 0 again. What runs beside it may find a part of the rows.
  void Clear();

  size_t num_rows() const;

  // Bytes of the rows, the index, the recent pulls and the table's own parts; not counted are the
  // unused end of the arena's last chunk, the one that is mapped ahead, and what is frozen.
  size_t memory_bytes() const;

  // The largest step that was pushed or imported, 0 at first.
  int64_t last_step() const { return last_step_.load(std::memory_order_relaxed); }

  // A row stores its step in 32 bits.
  static constexpr int64_t kMaxStep = UINT32_MAX;

 private:
  // Calls visit(stripe) for each stripe. Calls begin at different stripes, so that
  // two threads with a batch each do not follow one another from lock to lock.
  template <typename Visit>
  void ForEachStripe(Visit&& visit);

  void RaiseLastStep(int64_t step);

  const RowRules rules_;
  int stripe_bits_;
  RecentPulls recent_pulls_;
  mutable std::mutex clear_mutex_;
  std::shared_ptr<Arena> arena_;  // guarded by clear_mutex_; that of all stripes between Clears
  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::atomic<int64_t> last_step_{0};
  std::atomic<size_t> num_batches_{0};
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_TABLE_H_
