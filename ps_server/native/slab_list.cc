#include "slab_list.h"

#include <algorithm>
#include <stdexcept>

namespace ps_server {

SlabList::SlabList(Arena* arena, size_t stride)
    : arena_(arena), stride_(stride), slab_shift_(kFirstShift) {
  while ((stride << (slab_shift_ + 1)) <= kSlabBytes) ++slab_shift_;
  num_small_ = static_cast<uint32_t>(slab_shift_ - kFirstShift) + 1;
}

void SlabList::AddSlab() {
  const uint32_t size = std::min(std::max(num_slots_, kFirstSlots), 1u << slab_shift_);
  if (num_slots_ > UINT32_MAX - size) {
    throw std::length_error("a stripe holds at most 2**32 rows; use more stripes");
  }
  const uintptr_t block = reinterpret_cast<uintptr_t>(arena_->Allocate(size * stride_));
  bases_.push_back(block - uintptr_t{num_slots_} * stride_);
  num_slots_ += size;
}

}  // namespace ps_server
