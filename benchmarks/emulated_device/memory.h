// Memory: what one emulated device has, up to a limit.
#ifndef EMULATED_MEMORY_H_
#define EMULATED_MEMORY_H_

#include <cstddef>
#include <mutex>

namespace emulated {

// Counts what is allocated and refuses what would exceed the limit. It is host
// memory, for kernels that fall back to the CPU, but no other than this device's.
//
// Thread safety: all methods may be called from any thread.
// Invariant: used() <= limit.
class Memory {
 public:
  static constexpr size_t kAlignment = 256;  // as cudaMalloc's

  explicit Memory(size_t limit) : limit_(limit) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns `size` bytes that start at a multiple of kAlignment, or null if they do not fit.
  void* Allocate(size_t size);

  // REQUIRES: `at` is of Allocate(size), and no stream has work left on it.
  void Free(void* at, size_t size);

  size_t limit() const { return limit_; }
  size_t used() const;

 private:
  const size_t limit_;
  mutable std::mutex mutex_;
  size_t used_ = 0;  // guarded by mutex_
};

}  // namespace emulated

#endif  // EMULATED_MEMORY_H_
