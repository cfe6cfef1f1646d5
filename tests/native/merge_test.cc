#include "merge.h"

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

struct Batch {
  std::vector<Item> items;
  std::vector<float> gradients;

  Items AsItems() const { return {items.data(), items.size()}; }
};

// Positions run backwards and leave gaps, as those of one stripe of many do.
Batch RandomBatch(size_t n, uint64_t num_distinct, uint64_t spacing, size_t dim) {
  std::mt19937_64 random(n * 31 + num_distinct);
  std::normal_distribution<float> normal;
  Batch batch;
  for (size_t i = 0; i < n; ++i) {
    batch.items.push_back({random() % num_distinct * spacing, static_cast<uint32_t>(2 * (n - i))});
  }
  for (size_t i = 0; i < (2 * n + 1) * dim; ++i) batch.gradients.push_back(normal(random));
  return batch;
}

void CheckMerge(const Batch& batch, size_t dim) {
  const Merge merge(batch.AsItems(), batch.gradients.data(), dim);
  std::set<uint64_t> seen;
  for (size_t i = 0; i < merge.items().size; ++i) {
    const Item& item = merge.items().first[i];
    CHECK(seen.insert(item.hash).second);
    std::vector<float> sum;
    for (const Item& other : batch.items) {
      if (other.hash != item.hash) continue;
      const float* const gradient = &batch.gradients[other.position * dim];
      if (sum.empty()) {
        sum.assign(gradient, gradient + dim);
      } else {
        for (size_t d = 0; d < dim; ++d) sum[d] += gradient[d];
      }
    }
    CHECK_EQ(sum.size(), dim);
    CHECK_EQ(std::memcmp(sum.data(), merge.gradient(item), dim * sizeof(float)), 0);
  }
  for (const Item& item : batch.items) CHECK_EQ(seen.count(item.hash), 1u);
}

TEST(GradientsOfEqualHashesAreSummedInTheOrderOfTheBatch) {
  for (size_t dim : {1, 3, 8, 17}) {
    for (size_t n : {0, 1, 2, 15, 16, 17, 400}) {
      for (uint64_t num_distinct : {1, 2, 9, 100'000}) {
        for (uint64_t spacing : {1, 1 << 20}) {  // the second collide in their low bits
          CheckMerge(RandomBatch(n, num_distinct, spacing, dim), dim);
        }
      }
    }
  }
}

TEST(UniqueItemsAreNotCopied) {
  Batch batch = RandomBatch(50, 1, 1, 4);
  for (size_t i = 0; i < batch.items.size(); ++i) batch.items[i].hash = i * 7;
  const Merge merge(batch.AsItems(), batch.gradients.data(), 4);
  CHECK_EQ(merge.items().first, batch.items.data());
  CHECK_EQ(merge.gradient(batch.items[3]), &batch.gradients[batch.items[3].position * 4]);
  CheckMerge(batch, 4);
}

}  // namespace
}  // namespace ps_server
