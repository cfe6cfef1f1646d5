#include "block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace ps_server {
namespace {

constexpr size_t kUsableAtOnce = size_t{1} << 24;

constexpr size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

}  // namespace

BlockPool::BlockPool(size_t num_addresses)
    : num_addresses_(num_addresses), free_(ClassOf(kLargest) + 1) {
  void* const start =
      mmap(nullptr, num_addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  start_ = reinterpret_cast<uintptr_t>(start);
}

BlockPool::~BlockPool() { munmap(reinterpret_cast<void*>(start_), num_addresses_); }

size_t BlockPool::ClassOf(size_t size) {
  // Class 8 o + k has (8 + k) << o pages: the first eight are of 8 to 15 pages.
  const size_t pages = std::max<size_t>(RoundUp(size, kPage) / kPage, 8);
  size_t octave = 0;
  while ((pages - 1) >> (octave + 4) != 0) ++octave;
  const size_t eighths = ((pages - 1) >> octave) + 1;
  return 8 * octave + eighths - 8;
}

size_t BlockPool::SizeOf(size_t size_class) {
  return ((8 + size_class % 8) << (size_class / 8)) * kPage;
}

void* BlockPool::Allocate(size_t size) noexcept {
  if (size < kSmallest || size > kLargest) return nullptr;
  const size_t size_class = ClassOf(size);
  const size_t room = SizeOf(size_class);
  std::lock_guard<std::mutex> lock(mutex_);
  try {
    std::vector<FreeBlock>& blocks = free_[size_class];
    void* block = nullptr;
    if (!blocks.empty() && blocks.back().has_pages) {
      block = blocks.back().start;
      blocks.pop_back();
      bytes_free_ -= room;
    } else {
      GiveBackFor(room);
      if (blocks.empty()) {
        block = TakeAddresses(room);
        if (block == nullptr) return nullptr;
      } else {
        block = blocks.back().start;
        blocks.pop_back();
      }
    }
    class_of_[block] = size_class;
    bytes_used_ += room;
    most_used_ = std::max(most_used_, bytes_used_);
    return block;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void BlockPool::Free(void* block) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = class_of_.find(block);
  const size_t size_class = found->second;
  class_of_.erase(found);
  // Behind those without pages, for they are taken from the end.
  free_[size_class].push_back({block, true});
  bytes_used_ -= SizeOf(size_class);
  bytes_free_ += SizeOf(size_class);
}

void* BlockPool::TakeAddresses(size_t size) {
  if (size > num_addresses_ - num_taken_) return nullptr;
  if (num_taken_ + size > num_usable_) {
    const size_t more = std::min(RoundUp(num_taken_ + size - num_usable_, kUsableAtOnce),
                                 num_addresses_ - num_usable_);
    void* const from = reinterpret_cast<void*>(start_ + num_usable_);
    if (mprotect(from, more, PROT_READ | PROT_WRITE) != 0) return nullptr;
    num_usable_ += more;
  }
  void* const block = reinterpret_cast<void*>(start_ + num_taken_);
  num_taken_ += size;
  return block;
}

void BlockPool::GiveBackFor(size_t size) {
  const size_t most = std::max(kMostKept * std::max(most_used_, bytes_used_ + size), kLeastKept);
  for (size_t c = free_.size(); c-- > 0 && bytes_used_ + bytes_free_ + size > most;) {
    for (FreeBlock& block : free_[c]) {  // the longest free ones are first
      if (bytes_used_ + bytes_free_ + size <= most) break;
      if (!block.has_pages) continue;
      madvise(block.start, SizeOf(c), MADV_DONTNEED);
      block.has_pages = false;
      bytes_free_ -= SizeOf(c);
    }
  }
}

size_t BlockPool::BytesUsed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_used_;
}

size_t BlockPool::BytesKept() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_used_ + bytes_free_;
}

}  // namespace ps_server
