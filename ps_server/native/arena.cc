#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <system_error>

namespace ps_server {
namespace {

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

void* Arena::Allocate(size_t bytes) {
  const size_t alignment = bytes >= kPage ? kPage : kAlignment;
  bytes = RoundUp(bytes, alignment);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto skipped = [&] {
    const uintptr_t start = reinterpret_cast<uintptr_t>(free_);
    return RoundUp(start, alignment) - start;
  };
  if (skipped() + bytes > num_free_) AddChunk(bytes);
  const size_t taken = skipped() + bytes;
  char* const block = free_ + skipped();
  free_ += taken;
  num_free_ -= taken;
  bytes_allocated_ += taken;
  return block;
}

Arena::~Arena() {
  JoinFaulter();
  for (const Chunk& chunk : chunks_) munmap(chunk.start, chunk.size);
  if (next_.start != nullptr) munmap(next_.start, next_.size);
}

size_t Arena::BytesAllocated() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_allocated_;
}

size_t Arena::NextSize() const {
  if (bytes_mapped_ < kHugePage) return std::max(bytes_mapped_, kMinChunk);
  return std::clamp(bytes_mapped_ / 16, kHugePage, kMaxChunk);
}

void Arena::AddChunk(size_t bytes) {
  const size_t size = std::max(NextSize(), bytes);
  chunks_.reserve(chunks_.size() + 1);
  if (next_.size >= bytes) {
    chunks_.push_back(next_);
    next_ = {nullptr, 0};
  } else {
    chunks_.push_back(MapChunk(size));
  }
  free_ = chunks_.back().start;
  num_free_ = chunks_.back().size;
  bytes_mapped_ += num_free_;
  if (num_free_ >= kHugePage && next_.start == nullptr) MapNext();
}

// Maps the next chunk, and faults it in beside whoever fills the one before it. Should
// the table get there first, both fault in what is left: nobody waits.
void Arena::MapNext() {
#ifdef MADV_POPULATE_WRITE
  try {
    JoinFaulter();
    next_ = MapChunk(NextSize());
    faulter_ = std::thread([this, chunk = next_] {
      for (size_t at = 0; at < chunk.size && !is_overtaken_.load(); at += kHugePage) {
        if (madvise(chunk.start + at, kHugePage, MADV_POPULATE_WRITE) != 0) return;
      }
    });
  } catch (const std::bad_alloc&) {     // no memory, or no thread: a hint like any
  } catch (const std::system_error&) {  // other, and the table goes on without
  }
#endif
}

void Arena::JoinFaulter() {
  if (!faulter_.joinable()) return;
  is_overtaken_.store(true);
  faulter_.join();
  is_overtaken_.store(false);
}

Arena::Chunk Arena::MapChunk(size_t size) {
  const bool is_huge = size >= kHugePage;
  size = RoundUp(size, is_huge ? kHugePage : kPage);
  // Only an aligned chunk can be made of huge pages: map one more, cut both ends off.
  const size_t mapped = is_huge ? size + kHugePage : size;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  char* const first = static_cast<char*>(map);
  if (!is_huge) return {first, size};

  const size_t head =
      RoundUp(reinterpret_cast<uintptr_t>(map), kHugePage) - reinterpret_cast<uintptr_t>(map);
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
