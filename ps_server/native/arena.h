// Memory of one table: blocks that live as long as the arena.
//
// Owns the chunks that blocks are cut from, and a thread that faults in the next
// one, so that a growing table does not wait for the kernel to clear its pages.
// Thread-safe: the stripes of a table share one arena, so that a small table takes
// little and a large one fills huge pages.
//
// Invariants:
//   1. A block starts at a multiple of kAlignment, one of kPage or more at a
//      multiple of kPage. It is zero, and never moves.
//   2. A chunk is as large as all before it while they are below kHugePage, then a
//      sixteenth of them, from kHugePage to kMaxChunk. From the first of kHugePage on,
//      the next one is mapped ahead: a table of 1 GB has 64 to 128 MB it does not use.
//   3. A chunk of kHugePage or more starts on a huge page and asks for them.

#ifndef PS_SERVER_NATIVE_ARENA_H_
#define PS_SERVER_NATIVE_ARENA_H_

#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace ps_server {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kPage = 4096;

  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns a block of `bytes` bytes, all zero. Throws std::bad_alloc.
  void* Allocate(size_t bytes);

  // The size of all blocks, in bytes.
  size_t BytesAllocated() const;

 private:
  static constexpr size_t kMinChunk = size_t{1} << 16;
  static constexpr size_t kHugePage = size_t{1} << 21;
  static constexpr size_t kMaxChunk = size_t{1} << 28;

  struct Chunk {
    char* start;
    size_t size;
  };

  static Chunk MapChunk(size_t size);

  size_t NextSize() const;      // REQUIRES: mutex_
  void AddChunk(size_t bytes);  // REQUIRES: mutex_
  void MapNext();               // REQUIRES: mutex_
  void JoinFaulter();           // REQUIRES: mutex_, or that nobody else is here

  mutable std::mutex mutex_;
  std::vector<Chunk> chunks_;              // guarded by mutex_
  Chunk next_ = {nullptr, 0};              // guarded by mutex_; mapped ahead, or null
  char* free_ = nullptr;                   // guarded by mutex_; the unused end of the last chunk
  size_t num_free_ = 0;                    // guarded by mutex_; in bytes
  size_t bytes_allocated_ = 0;             // guarded by mutex_
  size_t bytes_mapped_ = 0;                // guarded by mutex_; of chunks_
  std::thread faulter_;                    // guarded by mutex_; of the newest mapping
  std::atomic<bool> is_overtaken_{false};  // the faulter is to stop
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_ARENA_H_
