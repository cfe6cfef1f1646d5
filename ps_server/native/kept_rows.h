// Of the rows that a stripe had when it was frozen, those that have changed since,
// as they were.
//
// Whoever is about to change a row asks whether it is wanted, and if so has it kept
// first: copy on write, a row at a time. What was not kept is still in its place.
//
//   slot of the stripe    0 1 2 3 4 5 6 7 | 8 9 ...    8 = end: later rows are not wanted
//   is_kept_              0 0 1 0 0 1 0 0 |
//   copies_               | row 5 | row 2 |            in the order of their changes
//   index_                hash -> slot of the copy     found by the hash of the key,
//   kept_                 | hash of 5 | hash of 2 |    those from num_indexed_ on are not in it
//
// Who changes a row copies it and no more: its place in the index is made by who
// reads the copies, so that pushes do not wait for an index to grow.
//
// Owns the bits; copies, hashes and index are blocks of the arena, which outlives it: a push
// that asks malloc for memory may wait for who faults in the arena's. Not thread-safe; the lock
// of the stripe guards it.
//
// Invariants:
//   1. A slot below the end names the row that it named at the freeze, or none: who
//      frees that of a wanted row has it kept before, and no freed one is used again meanwhile.
//   2. A row is kept once, with its bit, its copy, its hash and, if that is one of the first
//      num_indexed_, its entry in the index.

#ifndef PS_SERVER_NATIVE_KEPT_ROWS_H_
#define PS_SERVER_NATIVE_KEPT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "bucket_range.h"
#include "index.h"
#include "prefetch.h"
#include "row.h"
#include "row_list.h"

namespace ps_server {

class KeptRows {
 public:
  // The index uses the hash bits below `directory_top`. Nothing is wanted yet.
  KeptRows(Arena* arena, const RowLayout& layout, int directory_top);

  // Makes room for a freeze of slots below `end`: all that takes time in it.
  void Reserve(size_t end);

  // Wants the rows of some buckets whose slots are below `end` from now on; false, and
  // nothing is wanted, if there is no room for so many. REQUIRES: is called once with success.
  bool Freeze(uint32_t end, const BucketRange& buckets);

  // Wants no other rows than those of these buckets any more.
  void Narrow(const BucketRange& buckets) { buckets_ = buckets; }

  // Whether a row belongs to the frozen state and is not kept.
  bool Wants(uint64_t hash, uint32_t slot) const {
    return slot < end_ && buckets_.HasBucketOf(hash) && (is_kept_[slot / 64] >> slot % 64 & 1) == 0;
  }

  // Whether the row of a slot was there at the freeze.
  bool IsOfFreeze(uint32_t slot) const { return slot < end_; }

  // Starts to load what Wants reads.
  void PrefetchIsKept(uint32_t slot) const {
    if (slot < end_) ps_server::Prefetch(&is_kept_[slot / 64]);
  }

  // Starts to load what Find reads first.
  void Prefetch(uint64_t hash) const { index_.Prefetch(hash); }

  // Copies a row that is about to change. REQUIRES: Wants(hash, slot).
  // Throws std::bad_alloc or std::length_error, and then nothing has changed.
  void Keep(uint64_t hash, uint32_t slot, RowRef row);

  // Indexes up to `max_copies` copies; returns whether there are more. Throws
  // std::bad_alloc or std::length_error, and may be called again.
  bool IndexCopies(size_t max_copies);

  // The row as it was; null if it was not kept. REQUIRES: all copies are indexed.
  RowRef Find(uint64_t hash) const {
    const uint32_t copy = index_.Find(hash);
    return copy == Index::kMissing ? RowRef{nullptr, nullptr} : copies_.At(copy);
  }

  // Names the copies that are indexed by their hashes.
  const Index& index() const { return index_; }

  // The size of all that is not the arena's, in bytes.
  size_t OwnBytes() const;

 private:
  struct Kept {
    uint64_t hash;
    uint32_t copy;  // its slot
  };
  static constexpr size_t kKeptPerBlock = Arena::kPage / sizeof(Kept);

  Arena* const arena_;
  const size_t num_floats_;
  uint32_t end_ = 0;
  BucketRange buckets_{0, 0};
  std::vector<uint64_t> is_kept_;  // a bit a slot
  RowList copies_;
  std::vector<Kept*> kept_;  // blocks of kKeptPerBlock
  size_t num_kept_ = 0;
  size_t num_indexed_ = 0;
  Index index_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_KEPT_ROWS_H_
