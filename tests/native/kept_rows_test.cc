#include "kept_rows.h"

#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "hash.h"

namespace ps_server {
namespace {

TEST(RowsAreWantedOnceAndFoundAsTheyWere) {
  const RowLayout layout(3, 2);
  Arena arena;
  RowList list(&arena, layout);
  constexpr uint32_t kNumRows = 5'000;
  std::vector<uint32_t> slots;
  const auto write = [&](uint32_t slot, float value) {
    const RowRef row = list.At(slot);
    std::fill_n(row.weights, 9, value);
    *row.meta = {static_cast<uint32_t>(value), static_cast<uint32_t>(value) + 1};
  };
  for (uint32_t i = 0; i < kNumRows; ++i) {
    slots.push_back(list.Next(true));
    list.Add(slots.back());
    write(slots.back(), static_cast<float>(i));
  }
  Arena copies;
  KeptRows kept(&copies, layout, kStripeTop);
  CHECK(!kept.Wants(HashOfKey(0), slots[0]));
  kept.Reserve(0);
  CHECK(!kept.Freeze(list.end(), BucketRange(0, kNumBuckets)));  // no room: nothing is wanted yet
  CHECK(!kept.Wants(HashOfKey(0), slots[0]));
  kept.Reserve(list.end());
  CHECK(kept.Freeze(list.end(), BucketRange(0, kNumBuckets)));
  CHECK(!kept.Wants(0, list.Next(false)));
  CHECK_EQ(copies.BytesAllocated(), 0u);
  std::mt19937_64 random(2);
  std::map<uint32_t, bool> is_kept;
  for (int i = 0; i < 4'000; ++i) {
    const uint32_t row = random() % kNumRows;
    CHECK_EQ(kept.Wants(HashOfKey(row), slots[row]), !is_kept[row]);
    if (!is_kept[row]) kept.Keep(HashOfKey(row), slots[row], list.At(slots[row]));
    is_kept[row] = true;
    write(slots[row], -1.0f);
    if (i % 500 == 0) kept.IndexCopies(random() % 300);
  }
  const uint32_t last = 3 * kNumRows;  // kept, but not among the indexed ones yet
  kept.Keep(HashOfKey(last), slots[0], list.At(slots[0]));
  CHECK(kept.Find(HashOfKey(last)).weights == nullptr);
  while (kept.IndexCopies(100)) {
  }
  CHECK(kept.Find(HashOfKey(last)).weights != nullptr);
  for (uint32_t row = 0; row < kNumRows; ++row) {
    const RowRef found = kept.Find(HashOfKey(row));
    CHECK_EQ(found.weights != nullptr, is_kept[row]);
    if (!is_kept[row]) continue;
    for (int d = 0; d < 9; ++d) CHECK_EQ(found.weights[d], static_cast<float>(row));
    CHECK_EQ(found.meta->num_pushes, row);
    CHECK_EQ(found.meta->step, row + 1);
  }
  CHECK(kept.OwnBytes() >= kNumRows / 8);
}

TEST(RowsOfTheBucketsAloneAreWanted) {
  Arena arena;
  KeptRows kept(&arena, RowLayout(3, 2), kStripeTop);
  kept.Reserve(10);
  CHECK(kept.Freeze(10, BucketRange(3, 6)));
  const auto is_wanted = [&](uint64_t bucket) { return kept.Wants(bucket << kStripeTop, 1); };
  for (uint64_t bucket = 0; bucket < 9; ++bucket) {
    CHECK_EQ(is_wanted(bucket), 3 <= bucket && bucket < 6);
  }
  kept.Narrow(BucketRange(5, 6));
  for (uint64_t bucket = 0; bucket < 9; ++bucket) CHECK_EQ(is_wanted(bucket), bucket == 5);
}

}  // namespace
}  // namespace ps_server
