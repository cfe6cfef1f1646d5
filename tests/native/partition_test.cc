#include "partition.h"

#include <random>
#include <vector>

#include "check.h"
#include "hash.h"

namespace ps_server {
namespace {

TEST(ItemsOfAStripeAreAdjacentAndKeepTheOrderOfTheBatch) {
  std::mt19937_64 random(2);
  for (int stripe_bits : {0, 1, 6, 10}) {
    for (size_t n : {0, 1, 2, 100, 5000}) {
      std::vector<uint64_t> keys(n);
      for (uint64_t& key : keys) key = random() % 2000;
      const Partition partition(keys.data(), n, stripe_bits);
      std::vector<bool> is_seen(n);
      size_t num_seen = 0;
      for (size_t stripe = 0; stripe < size_t{1} << stripe_bits; ++stripe) {
        const Items items = partition.OfStripe(stripe);
        for (size_t i = 0; i < items.size; ++i) {
          const Item& item = items.first[i];
          CHECK(item.position < n && !is_seen[item.position]);
          is_seen[item.position] = true;
          ++num_seen;
          CHECK_EQ(item.hash, HashOfKey(keys[item.position]));
          CHECK_EQ(StripeOfHash(item.hash, stripe_bits), stripe);
          if (i > 0) CHECK(items.first[i - 1].position < item.position);
        }
      }
      CHECK_EQ(num_seen, n);
    }
  }
}

TEST(FieldsOfAHashAreDisjoint) {
  for (int stripe_bits : {0, 1, 6, 10}) {
    for (int bit = 0; bit < 64; ++bit) {
      const uint64_t hash = uint64_t{1} << bit;
      const bool is_bucket = BucketOfHash(hash) != 0, is_stripe = StripeOfHash(hash, stripe_bits);
      CHECK_EQ(is_bucket, bit >= kStripeTop);
      CHECK_EQ(is_stripe, bit < kStripeTop && bit >= kStripeTop - stripe_bits);
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t key = random();
    CHECK_EQ(KeyOfHash(HashOfKey(key)), key);
  }
}

}  // namespace
}  // namespace ps_server
