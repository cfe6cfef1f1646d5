// Large blocks that are asked for and freed again and again, kept by their size.
//
// Owns a range of addresses, and the pages in it. Thread-safe, also across a fork.
//
// A heap that splits and joins blocks of all sizes keeps holes between them, more or
// less by which thread did what when. A training step asks for the same sizes each
// time: a block of its own for each of them leaves no holes, and takes no time.
//
// Invariants:
//   1. A block starts at a page and has room for what was asked for, rounded up to
//      a class: an eighth more at most. Its class is its own for ever.
//   2. A free block keeps its pages, and is the next of its class. All pages together
//      are at most kMostKept times what was in use at one time, or kLeastKept.

#ifndef PS_SERVER_NATIVE_BLOCK_POOL_H_
#define PS_SERVER_NATIVE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace ps_server {

class BlockPool {
 public:
  static constexpr size_t kPage = 4096;
  // Smaller ones are many, and well off in a heap. Larger ones are few, and cost little more
  // than what is done with them if they are the system's.
  static constexpr size_t kSmallest = size_t{1} << 15;
  static constexpr size_t kLargest = size_t{1} << 28;
  static constexpr size_t kMostKept = 2;
  static constexpr size_t kLeastKept = size_t{1} << 26;

  // Takes a range of so many addresses, no memory. Throws std::bad_alloc.
  explicit BlockPool(size_t num_addresses);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns a block, or null: its size is not from kSmallest to kLargest, or the
  // system has no more.
  void* Allocate(size_t size) noexcept;

  // Whether a pointer is into a block of this pool.
  bool Owns(const void* pointer) const noexcept {
    return reinterpret_cast<uintptr_t>(pointer) - start_ < num_addresses_;
  }

  // REQUIRES: `block` was returned by Allocate, and not freed since.
  void Free(void* block) noexcept;

  // Bytes of blocks in use, and of all pages that it has.
  size_t BytesUsed() const;
  size_t BytesKept() const;

  // For pthread_atfork.
  void Lock() { mutex_.lock(); }
  void Unlock() { mutex_.unlock(); }

  // The class of a size, and the size of a class; of eight to each power of two.
  static size_t ClassOf(size_t size);
  static size_t SizeOf(size_t size_class);

 private:
  struct FreeBlock {
    void* start;
    bool has_pages;
  };

  void* TakeAddresses(size_t size);  // REQUIRES: mutex_; null if there are no more
  void GiveBackFor(size_t size);     // REQUIRES: mutex_; keeps invariant 2 with so much more

  uintptr_t start_;
  size_t num_addresses_;
  mutable std::mutex mutex_;
  size_t num_taken_ = 0;                        // guarded by mutex_; addresses
  size_t num_usable_ = 0;                       // guarded by mutex_; of these
  size_t bytes_used_ = 0;                       // guarded by mutex_
  size_t bytes_free_ = 0;                       // guarded by mutex_; of those with pages
  size_t most_used_ = 0;                        // guarded by mutex_
  std::vector<std::vector<FreeBlock>> free_;    // guarded by mutex_; by class
  std::unordered_map<void*, size_t> class_of_;  // guarded by mutex_; of blocks in use
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_BLOCK_POOL_H_
