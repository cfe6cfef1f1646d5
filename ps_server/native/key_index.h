// Numbers keys in the order in which they first come: 0, 1, 2, ...
//
// For who keeps rows elsewhere, one after the other, as a device does.
//
// Thread safety: all methods may be called from any thread.
// Invariants:
//   1. A key keeps its number; n keys have the numbers below n.
//   2. keys()[number of key] == key.

#ifndef PS_SERVER_NATIVE_KEY_INDEX_H_
#define PS_SERVER_NATIVE_KEY_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "arena.h"
#include "index.h"

namespace ps_server {

class KeyIndex {
 public:
  static constexpr int64_t kMissing = -1;

  KeyIndex();

  // Writes the number of each key, `numbers` [n]. A missing one is given the
  // next number if `insert`, or else kMissing. Throws std::bad_alloc or
  // std::length_error; the keys before have then been inserted.
  void Find(const uint64_t* keys, size_t n, bool insert, int64_t* numbers);

  size_t size() const;

  // A copy of the keys in the order of their numbers.
  std::vector<uint64_t> keys() const;

 private:
  Arena arena_;
  mutable std::mutex mutex_;
  Index index_;                 // guarded by mutex_
  std::vector<uint64_t> keys_;  // guarded by mutex_
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_KEY_INDEX_H_
