// How a key's bits choose the place of its row.
//
// A key is hashed by a bijection, so an index that stores the hash has the key
// as well, and two keys never share a hash. The fields below are disjoint: a
// server owns a contiguous range of buckets, and still fills all of its
// stripes, and every directory and home bucket in them, evenly.
//
//    63        52 51      46 45                        9         0
//   +------------+----------+------------------+--------+---------+
//   |   bucket   |  stripe  |  directory ->    |        |  home   |
//   +------------+----------+------------------+--------+---------+
//     kBucketBits  stripe_bits   as many as         |      within
//     of 64        (6 drawn)     segments need   unused    a segment

#ifndef PS_SERVER_NATIVE_HASH_H_
#define PS_SERVER_NATIVE_HASH_H_

#include <cstdint>

namespace ps_server {

constexpr int kBucketBits = 12;
constexpr uint32_t kNumBuckets = 1u << kBucketBits;

// The highest bit that is not of the bucket, plus one.
constexpr int kStripeTop = 64 - kBucketBits;

namespace internal {
constexpr uint64_t kMul1 = 0xff51afd7ed558ccdu;
constexpr uint64_t kMul2 = 0xc4ceb9fe1a85ec53u;
constexpr uint64_t kInverseMul1 = 0x4f74430c22a54005u;
constexpr uint64_t kInverseMul2 = 0x9cb4b2f8129337dbu;
static_assert(kMul1 * kInverseMul1 == 1 && kMul2 * kInverseMul2 == 1);
}  // namespace internal

// The finalizer of MurmurHash3: a bijection whose every output bit depends on
// every input bit.
constexpr uint64_t HashOfKey(uint64_t key) {
  key = (key ^ (key >> 33)) * internal::kMul1;
  key = (key ^ (key >> 33)) * internal::kMul2;
  return key ^ (key >> 33);
}

// The inverse of HashOfKey: a shift by more than half of the bits undoes itself.
constexpr uint64_t KeyOfHash(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * internal::kInverseMul2;
  hash = (hash ^ (hash >> 33)) * internal::kInverseMul1;
  return hash ^ (hash >> 33);
}

static_assert(KeyOfHash(HashOfKey(0x0123456789abcdefu)) == 0x0123456789abcdefu);

constexpr uint32_t BucketOfHash(uint64_t hash) { return static_cast<uint32_t>(hash >> kStripeTop); }

// Stripes of a table, log2, unless it is made otherwise: what a client may expect.
constexpr int kStripeBits = 6;

constexpr uint32_t StripeOfHash(uint64_t hash, int stripe_bits) {
  return static_cast<uint32_t>(hash >> (kStripeTop - stripe_bits)) & ((1u << stripe_bits) - 1);
}

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_HASH_H_
