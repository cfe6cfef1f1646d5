// The arena for AddressSanitizer: each block is one of malloc's, so that what
// leaves its block is seen. arena.cc cuts blocks from chunks of its own.

#include <cstdlib>
#include <cstring>
#include <new>

#include "arena.h"

namespace ps_server {

void* Arena::Allocate(size_t bytes) {
  constexpr size_t kMaxBlock = size_t{1} << 40;
  std::lock_guard<std::mutex> lock(mutex_);
  void* block = nullptr;
  const size_t alignment = bytes < kPage ? kAlignment : kPage;
  // AddressSanitizer's own limit would end the process.
  if (bytes > kMaxBlock || posix_memalign(&block, alignment, bytes) != 0) throw std::bad_alloc();
  std::memset(block, 0, bytes);
  chunks_.push_back({static_cast<char*>(block), bytes});
  bytes_allocated_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return block;
}

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) std::free(chunk.start);
}

size_t Arena::BytesAllocated() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return bytes_allocated_;
}

}  // namespace ps_server
