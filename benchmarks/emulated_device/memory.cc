#include "memory.h"

#include <cstdlib>

namespace emulated {
namespace {

size_t Padded(size_t size) {
  return (size + Memory::kAlignment - 1) / Memory::kAlignment * Memory::kAlignment;
}

}  // namespace

void* Memory::Allocate(size_t size) {
  const size_t padded = Padded(size);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (padded > limit_ - used_) return nullptr;
    used_ += padded;
  }
  void* at = std::aligned_alloc(kAlignment, padded);
  if (at == nullptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    used_ -= padded;
  }
  return at;
}

void Memory::Free(void* at, size_t size) {
  std::free(at);
  std::lock_guard<std::mutex> lock(mutex_);
  used_ -= Padded(size);
}

size_t Memory::used() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

}  // namespace emulated
