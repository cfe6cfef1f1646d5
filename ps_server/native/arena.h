// Memory of one table: blocks that live as long as the arena.
//
// Owns the chunks that blocks are cut from. Thread-safe: the stripes of a table
// share one arena, so that a small table takes little and a large one fills
// huge pages.
//
// Invariants:
//   1. A block starts at a multiple of kAlignment and never moves.
//   2. The chunks double from kMinChunk to kMaxChunk, so that at most about
//      half of what is mapped is unused.
//   3. A chunk of kHugePage or more starts on a huge page and asks for them.

#ifndef PS_SERVER_NATIVE_ARENA_H_
#define PS_SERVER_NATIVE_ARENA_H_

#include <cstddef>
#include <mutex>
#include <vector>

namespace ps_server {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns a block of `bytes` bytes, not initialised. Throws std::bad_alloc.
  void* Allocate(size_t bytes);

  // The size of all blocks, in bytes.
  size_t BytesAllocated() const;

 private:
  static constexpr size_t kMinChunk = size_t{1} << 16;
  static constexpr size_t kMaxChunk = size_t{1} << 26;
  static constexpr size_t kHugePage = size_t{1} << 21;

  struct Chunk {
    void* start;
    size_t size;
  };

  static Chunk MapChunk(size_t size);

  mutable std::mutex mutex_;
  std::vector<Chunk> chunks_;   // guarded by mutex_
  char* free_ = nullptr;        // guarded by mutex_; the unused end of the last chunk
  size_t num_free_ = 0;         // guarded by mutex_; in bytes
  size_t bytes_allocated_ = 0;  // guarded by mutex_
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_ARENA_H_
