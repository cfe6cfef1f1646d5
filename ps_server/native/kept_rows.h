// Of the rows that a stripe had when it was frozen, those that have changed since,
// as they were.
//
// Whoever is about to change a row asks whether it is wanted, and if so has it kept
// first: copy on write, a row at a time. What was not kept is still in its place.
//
//   slot of the stripe    0 1 2 3 4 5 6 7 | 8 9 ...    8 = end: later rows are not wanted
//   is_kept_              0 0 1 0 0 1 0 0 |
//   copies_               | row 5 | row 2 |            in the order of their changes,
//   index_                hash -> slot of the copy     found by the hash of the key
//
// Owns the bits; the copies and their index are blocks of the arena, which outlives
// it. Not thread-safe; the lock of the stripe guards it.
//
// Invariants:
//   1. A slot below the end names the row that it named at the freeze, or none: who
//      frees it has its row kept before, and no freed one is used again meanwhile.
//   2. A row is kept once, with its bit, its copy and its entry in the index.

#ifndef PS_SERVER_NATIVE_KEPT_ROWS_H_
#define PS_SERVER_NATIVE_KEPT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "index.h"
#include "row.h"
#include "row_list.h"

namespace ps_server {

class KeptRows {
 public:
  // The index uses the hash bits below `directory_top`. Nothing is wanted yet.
  KeptRows(Arena* arena, const RowLayout& layout, int directory_top);

  // Makes room for a freeze of slots below `end`: all that takes time in it.
  void Reserve(size_t end);

  // Wants the rows whose slots are below `end` from now on; false, and nothing is
  // wanted, if there is no room for so many. REQUIRES: is called once with success.
  bool Freeze(uint32_t end);

  // Whether a row belongs to the frozen state and is not kept.
  bool Wants(uint32_t slot) const {
    return slot < end_ && (is_kept_[slot / 64] >> slot % 64 & 1) == 0;
  }

  // Whether the row of a slot was there at the freeze.
  bool IsOfFreeze(uint32_t slot) const { return slot < end_; }

  // Starts to load what Keep and Find read first.
  void Prefetch(uint64_t hash) const { index_.Prefetch(hash); }

  // Copies a row that is about to change. REQUIRES: Wants(slot).
  // Throws std::bad_alloc or std::length_error, and then nothing has changed.
  void Keep(uint64_t hash, uint32_t slot, RowRef row);

  // The row as it was; null if it was not kept.
  RowRef Find(uint64_t hash) const {
    const uint32_t copy = index_.Find(hash);
    return copy == Index::kMissing ? RowRef{nullptr, nullptr} : copies_.At(copy);
  }

  // Names the copies by the hashes of all that is kept.
  const Index& index() const { return index_; }

  // The size of the bits and of the index's directory, in bytes: all that is not the arena's.
  size_t OwnBytes() const;

 private:
  const size_t num_floats_;
  uint32_t end_ = 0;
  std::vector<uint64_t> is_kept_;  // a bit a slot
  Index index_;
  RowList copies_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_KEPT_ROWS_H_
