// An array of equal elements that grows without moving any.
//
// Owns no memory: slabs are blocks of the arena, which outlives the list. Not
// thread-safe; its stripe's lock guards it. An element is named by its slot, 0, 1, 2, ...
//
//   slab      0    1     2        3          ...   small: each as large as all before it
//   slots    |4 | 4 |   8   |     16      |  ...   then all of 2^slab_shift_ slots
//
// Invariants:
//   1. An element never moves.
//   2. A slab holds a power of two of elements and, from kSlabBytes / stride
//      elements on, no more than kSlabBytes (but at least kFirstSlots).
//   3. The address of a slot is bases_[slab] + slot * stride_, so a base is
//      where slot 0 would be if its slab reached that far.

#ifndef PS_SERVER_NATIVE_SLAB_LIST_H_
#define PS_SERVER_NATIVE_SLAB_LIST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"

namespace ps_server {

class SlabList {
 public:
  // `stride` is the size of an element in bytes.
  SlabList(Arena* arena, size_t stride);

  // Makes room for `slot`. REQUIRES: slots below have room.
  void Reserve(uint32_t slot) {
    if (slot == num_slots_) AddSlab();
  }

  // REQUIRES: Reserve(slot) was called.
  template <typename T>
  T* At(uint32_t slot) const {
    return reinterpret_cast<T*>(bases_[SlabOf(slot)] + uintptr_t{slot} * stride_);
  }

 private:
  static constexpr int kFirstShift = 2;
  static constexpr uint32_t kFirstSlots = 1u << kFirstShift;
  static constexpr size_t kSlabBytes = size_t{1} << 16;

  size_t SlabOf(uint32_t slot) const {
    const uint32_t large = slot >> slab_shift_;
    if (large > 0) return large + num_small_ - 1;
    const uint32_t small = slot >> kFirstShift;
    return small == 0 ? 0 : 32 - static_cast<size_t>(__builtin_clz(small));
  }

  void AddSlab();

  Arena* arena_;
  size_t stride_;
  int slab_shift_;      // log2 of the slots of a large slab
  uint32_t num_small_;  // slabs below slot 2^slab_shift_
  uint32_t num_slots_ = 0;
  std::vector<uintptr_t> bases_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_SLAB_LIST_H_
