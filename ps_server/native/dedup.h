// What a client asks its servers for: the unique keys of a batch, those of one
// server adjacent, and where each key of the batch went.
//
// A value. Its order is: by owner, for one owner by the stripes of its tables, and
// for one stripe by first occurrence. So a server meets its rows in the order in
// which it takes its locks, and reads gradients and writes rows one after the other.
//
// Invariants:
//   1. unique_key(inverse[i]) == keys[i] for every i of the batch.

#ifndef PS_SERVER_NATIVE_DEDUP_H_
#define PS_SERVER_NATIVE_DEDUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ps_server {

class Dedup {
 public:
  // Writes inverse [n]. owners [kNumBuckets] is the server of each bucket.
  // Throws std::invalid_argument if an owner is not below num_owners, or n is
  // 2^32 or more.
  Dedup(const uint64_t* keys, size_t n, const uint16_t* owners, size_t num_owners,
        int64_t* inverse);

  size_t num_unique() const { return num_unique_; }

  // Unique keys of each owner.
  const std::vector<int64_t>& counts() const { return counts_; }

  // Writes the unique keys, [num_unique].
  void CopyUnique(uint64_t* unique) const;

 private:
  void FindUnique(const uint64_t* keys, size_t n, int64_t* inverse);
  void Group(const uint16_t* owners, int64_t* inverse, size_t n);

  std::unique_ptr<uint64_t[]> unique_;  // by first occurrence; the rest of [n + 1] is unset
  size_t num_unique_ = 0;
  std::vector<uint32_t> positions_;  // where each goes
  std::vector<int64_t> counts_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_DEDUP_H_
