// The rows of a stripe: an array that grows without moving any.
//
// A page holds rows, and behind them what only a push changes (their metas), so
// that a push finds both by one entry of the TLB, and a pull does not load what
// it does not read. A random touch of a page costs more than a line of it.
//
//   page   | row 0 | row 1 | ... | row r - 1 | meta 0 | ... | meta r - 1 | unused |
//   pages  |0|1| 2 3 |  4 .. 7  | ...   slabs: each as large as all before it, then
//                                       all of 2^slab_shift_ pages
//
// A row is named by its slot: its page above its place in the page. A row that is
// freed leaves its slot to a later one; until then its meta names the slot that was
// freed before it. Owns no memory: slabs are blocks of the arena, which outlives the
// list. Not thread-safe; its stripe's lock guards it.
//
// Invariants:
//   1. A row never moves.
//   2. Slots that were never taken are given out in rising order; those of a page
//      beyond its rows_per_page_ name nothing.
//   3. The address of a page is bases_[slab] + page * page_bytes_, so a base is
//      where page 0 would be if its slab reached that far.

#ifndef PS_SERVER_NATIVE_ROW_LIST_H_
#define PS_SERVER_NATIVE_ROW_LIST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "row.h"

namespace ps_server {

class RowList {
 public:
  // The largest slot there is; the one above it means "none".
  static constexpr uint32_t kMaxSlot = UINT32_MAX - 1;

  RowList(Arena* arena, const RowLayout& layout);

  // Returns the slot of the row that Add will add, and makes room for it: a freed
  // one if there is one and `may_reuse`. The row holds anything.
  // Throws std::bad_alloc or std::length_error, and then nothing has changed.
  uint32_t Next(bool may_reuse) {
    if (may_reuse && last_freed_ != kNone) return last_freed_;
    if (num_in_page_ == rows_per_page_) AddPage();
    return (num_pages_ - 1) << row_bits_ | num_in_page_;
  }

  // REQUIRES: `slot` is what the last call of Next returned, and nothing was written to
  // the meta of a freed one.
  void Add(uint32_t slot) {
    if (slot == last_freed_) {
      last_freed_ = At(slot).meta->step;
    } else {
      ++num_in_page_;
    }
  }

  // Leaves the slot of a row to a later one. REQUIRES: it is that of a row.
  void Free(uint32_t slot) {
    At(slot).meta->step = last_freed_;
    last_freed_ = slot;
  }

  // What is above the slot of every row, and not above one that Next will return
  // without reuse.
  uint32_t end() const {
    return num_pages_ == 0 ? 0 : ((num_pages_ - 1) << row_bits_) + num_in_page_;
  }

  // REQUIRES: the slot is that of a row, or Next's.
  RowRef At(uint32_t slot) const {
    const uint32_t page = slot >> row_bits_, place = slot & row_mask_;
    const uintptr_t start = bases_[SlabOf(page)] + uintptr_t{page} * page_bytes_;
    return {reinterpret_cast<float*>(start + place * stride_),
            reinterpret_cast<RowMeta*>(start + meta_start_) + place};
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kMinPage = size_t{1} << 12;
  static constexpr size_t kSlabBytes = size_t{1} << 16;

  size_t SlabOf(uint32_t page) const {
    const uint32_t large = page >> slab_shift_;
    if (large > 0) return large + static_cast<uint32_t>(slab_shift_);
    return page == 0 ? 0 : 32 - static_cast<size_t>(__builtin_clz(page));
  }

  void AddPage();

  Arena* arena_;
  size_t stride_;
  size_t page_bytes_;
  size_t meta_start_;
  uint32_t rows_per_page_;
  int row_bits_;  // of a slot, below the page
  uint32_t row_mask_;
  int slab_shift_;  // log2 of the pages of a large slab
  uint32_t num_pages_ = 0;
  uint32_t num_in_page_;         // rows of the last page
  uint32_t last_freed_ = kNone;  // the slot, or kNone
  uint32_t num_page_slots_ = 0;  // pages that the slabs have room for
  std::vector<uintptr_t> bases_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_ROW_LIST_H_
