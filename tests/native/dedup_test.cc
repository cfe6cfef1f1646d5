#include "dedup.h"

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.h"
#include "hash.h"

namespace ps_server {
namespace {

std::vector<uint16_t> OwnersOf(size_t num_owners) {
  std::vector<uint16_t> owners(kNumBuckets);
  for (size_t i = 0; i < kNumBuckets; ++i) {
    owners[i] = static_cast<uint16_t>(i * num_owners / kNumBuckets);
  }
  return owners;
}

// The unique keys by owner, each owner's by stripe, each stripe's by first occurrence.
std::vector<std::vector<uint64_t>> GroupsOf(const std::vector<uint64_t>& keys,
                                            const std::vector<uint16_t>& owners, size_t n) {
  std::vector<std::vector<uint64_t>> groups(n);
  for (uint64_t key : keys) {
    std::vector<uint64_t>& group = groups[owners[BucketOfHash(HashOfKey(key))]];
    if (std::find(group.begin(), group.end(), key) == group.end()) group.push_back(key);
  }
  for (std::vector<uint64_t>& group : groups) {
    std::stable_sort(group.begin(), group.end(), [](uint64_t left, uint64_t right) {
      return StripeOfHash(HashOfKey(left), kStripeBits) <
             StripeOfHash(HashOfKey(right), kStripeBits);
    });
  }
  return groups;
}

void CheckDedup(const std::vector<uint64_t>& keys, size_t num_owners) {
  const std::vector<uint16_t> owners = OwnersOf(num_owners);
  std::vector<int64_t> inverse(keys.size() + 1, -77);
  const Dedup dedup(keys.data(), keys.size(), owners.data(), num_owners, inverse.data());
  std::vector<uint64_t> unique(dedup.num_unique() + 1, 77);
  dedup.CopyUnique(unique.data());
  CHECK_EQ(inverse.back(), -77);  // nothing past the end
  CHECK_EQ(unique.back(), 77u);

  const auto groups = GroupsOf(keys, owners, num_owners);
  CHECK_EQ(dedup.counts().size(), num_owners);
  size_t at = 0;
  for (size_t owner = 0; owner < num_owners; ++owner) {
    CHECK_EQ(static_cast<size_t>(dedup.counts()[owner]), groups[owner].size());
    for (uint64_t key : groups[owner]) CHECK_EQ(unique[at++], key);
  }
  CHECK_EQ(at, dedup.num_unique());
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(inverse[i] >= 0 && static_cast<size_t>(inverse[i]) < dedup.num_unique());
    CHECK_EQ(unique[static_cast<size_t>(inverse[i])], keys[i]);
  }
}

TEST(UniqueKeysAreGroupedByOwnerAndStripeInOrderOfFirstOccurrence) {
  std::mt19937_64 random(1);
  for (size_t num_owners : {1, 2, 3, 7, 64}) {
    CheckDedup({}, num_owners);
    CheckDedup({0}, num_owners);
    CheckDedup({0, UINT64_MAX, 0, 1, UINT64_MAX}, num_owners);
    for (size_t n : {15, 16, 17, 33, 1000}) {
      for (uint64_t num_distinct : {uint64_t{1}, uint64_t{7}, uint64_t{500}, UINT64_MAX}) {
        std::vector<uint64_t> keys(n);
        for (uint64_t& key : keys) key = random() % num_distinct;
        CheckDedup(keys, num_owners);
      }
    }
  }
}

TEST(KeysThatCollideInTheirLowBitsAreToldApart) {
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 300; ++i) keys.push_back(KeyOfHash((i % 150) << 40 | 5));
  CheckDedup(keys, 1);
  CheckDedup(keys, 5);
}

TEST(OwnerThatIsNotCountedIsRefused) {
  const std::vector<uint16_t> owners = OwnersOf(3);
  int64_t inverse;
  const uint64_t key = 1;
  CHECK_THROWS(std::invalid_argument, Dedup(&key, 1, owners.data(), 2, &inverse));
  CHECK_THROWS(std::invalid_argument, Dedup(&key, 1, owners.data(), 0, &inverse));
}

}  // namespace
}  // namespace ps_server
