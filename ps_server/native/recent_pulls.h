// What the latest pulls found, for the pushes of the same keys that follow them.
//
// A worker pushes the gradients of the very keys that it pulled. A push that
// finds its batch here has its order of stripes and the slots of its rows, and
// leaves the index alone: a page less to touch a row.
//
// Thread-safe. Owns what it remembers: the latest pulls, up to kMaxPulls of them and
// kMaxKeys keys.
//
// Invariants:
//   1. What Take returns was found for exactly the keys that it was asked for.
//   2. Each pull is taken once.

#ifndef PS_SERVER_NATIVE_RECENT_PULLS_H_
#define PS_SERVER_NATIVE_RECENT_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "partition.h"

namespace ps_server {

// A batch of keys in the order of their stripes, and where their rows are.
struct FoundRows {
  FoundRows(const uint64_t* keys, size_t n, int stripe_bits)
      : partition(keys, n, stripe_bits),
        slots(new uint32_t[n]),
        generations(size_t{1} << stripe_bits),
        num_keys(n) {}

  // Those of a stripe, aligned with its items.
  uint32_t* SlotsOfStripe(size_t stripe) const {
    return slots.get() + partition.StartOfStripe(stripe);
  }

  Partition partition;
  std::unique_ptr<uint32_t[]> slots;  // [n], aligned with the items of all stripes
  std::vector<uint64_t>
      generations;  // of each stripe, in which its slots hold; unset without items
  size_t num_keys;
};

class RecentPulls {
 public:
  // 24 MB; about 40 batches of 4,096 samples of Criteo.
  static constexpr size_t kMaxKeys = size_t{1} << 20;
  // A push looks at each, and each takes a kilobyte beside its keys. Of those that a
  // push follows, there are 1 + staleness a worker.
  static constexpr size_t kMaxPulls = 256;

  // Forgets the oldest for its sake. A batch above kMaxKeys is not remembered.
  void Remember(std::shared_ptr<const FoundRows> found);

  // Returns the latest pull of keys [n], in this order, and forgets it; null if
  // there is none.
  std::shared_ptr<const FoundRows> Take(const uint64_t* keys, size_t n);

  // Bytes of what is remembered.
  size_t BytesHeld() const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<const FoundRows>> pulls_;  // guarded by mutex_; the oldest first
  size_t num_keys_ = 0;                                 // guarded by mutex_; of all pulls
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_RECENT_PULLS_H_
