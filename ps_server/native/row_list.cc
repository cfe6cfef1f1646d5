#include "row_list.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ps_server {
namespace {

struct PageSize {
  size_t bytes;
  uint32_t num_rows;
};

// The smallest page, from `min` to `max` bytes, of which at most a 32nd is
// unused; of rows too long for that, a page of its own each.
PageSize ChoosePage(size_t row_bytes, size_t min, size_t max) {
  for (size_t bytes = min; bytes <= max; bytes *= 2) {
    const size_t num_rows = bytes / row_bytes;
    if (bytes - num_rows * row_bytes <= bytes / 32) {
      return {bytes, static_cast<uint32_t>(num_rows)};
    }
  }
  return {(row_bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment, 1};
}

}  // namespace

RowList::RowList(Arena* arena, const RowLayout& layout)
    : arena_(arena), stride_(layout.stride()), row_bits_(0), slab_shift_(0) {
  const PageSize page = ChoosePage(stride_ + sizeof(RowMeta), kMinPage, kSlabBytes);
  page_bytes_ = page.bytes;
  rows_per_page_ = num_in_page_ = page.num_rows;
  meta_start_ = rows_per_page_ * stride_;
  while ((uint32_t{1} << row_bits_) < rows_per_page_) ++row_bits_;
  row_mask_ = (uint32_t{1} << row_bits_) - 1;
  while ((page_bytes_ << (slab_shift_ + 1)) <= kSlabBytes) ++slab_shift_;
}

void RowList::AddPage() {
  if (num_pages_ == kMaxSlot >> row_bits_) {
    throw std::length_error("a stripe is full: it holds at most " +
                            std::to_string(uint64_t{num_pages_} * rows_per_page_) + " rows");
  }
  if (num_pages_ == num_page_slots_) {
    const uint32_t size =
        std::min(std::max(num_page_slots_, uint32_t{1}), uint32_t{1} << slab_shift_);
    bases_.reserve(bases_.size() + 1);
    const uintptr_t slab = reinterpret_cast<uintptr_t>(arena_->Allocate(size * page_bytes_));
    bases_.push_back(slab - uintptr_t{num_page_slots_} * page_bytes_);
    num_page_slots_ += size;
  }
  ++num_pages_;
  num_in_page_ = 0;
}

}  // namespace ps_server
