// The rows of a table as they were when it was frozen, while the table goes on.
//
// Owns the copies of the rows that have changed since, in an arena of its own, and
// shares what a Clear takes from the table. Thread-safe. Lock order: a stripe's, the
// arena's.
//
// Invariants:
//   1. What Export returns is a function of the rows at the freeze alone, whatever
//      is pulled, pushed, imported, dropped or cleared meanwhile.
//   2. Each stripe has its own moment, when its lock was held: the caller keeps
//      changes out of the freeze if it is to lie between two of them.

#ifndef PS_SERVER_NATIVE_FROZEN_H_
#define PS_SERVER_NATIVE_FROZEN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "arena.h"
#include "row.h"
#include "stripe.h"

namespace ps_server {

class Frozen {
 public:
  using Stripes = std::vector<std::unique_ptr<Stripe>>;

  // Freezes the stripes, one after the other, until it is destroyed.
  // REQUIRES: `stripes`, as many as a power of two, outlives it.
  Frozen(const RowLayout& layout, const Stripes& stripes, int64_t last_step);

  const RowLayout& layout() const { return layout_; }

  // Copies the rows of buckets [first_bucket, end_bucket), in the order of their
  // keys, to what `allocate(n)` returns for n rows. Reads the whole index
  // whatever the range, so a few wide ranges are cheaper than many narrow ones.
  // Locks are held for microseconds; `allocate` is called with none held.
  // Throws std::invalid_argument on a bad range.
  void Export(int64_t first_bucket, int64_t end_bucket,
              const std::function<RowColumns(size_t)>& allocate) const;

  // Rows there were, and the table's last step.
  size_t num_rows() const;
  int64_t last_step() const { return last_step_; }

  // Bytes of the copies so far, of their index, and of what tells who has one.
  size_t memory_bytes() const;

 private:
  const RowLayout layout_;
  const Stripes& stripes_;
  const int64_t last_step_;
  Arena arena_;                                        // of all copies
  std::vector<std::unique_ptr<Stripe::Frozen>> rows_;  // aligned with stripes_
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_FROZEN_H_
