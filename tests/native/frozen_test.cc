#include "frozen.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bucket_range.h"
#include "check.h"
#include "counting_table.h"
#include "hash.h"
#include "turns.h"

namespace ps_server {
namespace {

constexpr size_t kDim = 5;

// The rows of bucket `first` and those above.
Rows From(const Rows& rows, int64_t first, const RowLayout& layout) {
  Rows some(0, layout);
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    if (BucketOfHash(HashOfKey(rows.keys[i])) < static_cast<uint32_t>(first)) continue;
    some.keys.push_back(rows.keys[i]);
    for (size_t d = 0; d < layout.dim(); ++d) {
      some.weights.push_back(rows.weights[i * layout.dim() + d]);
    }
    some.num_pushes.push_back(rows.num_pushes[i]);
    some.steps.push_back(rows.steps[i]);
  }
  return some;
}

TEST(FrozenRowsAreThoseOfTheFreezeWhateverComesAfter) {
  for (size_t num_stripes : {1, 8, 64}) {
    Table table(CountingRules(kDim), num_stripes);
    std::mt19937_64 random(num_stripes);
    struct State {
      std::unique_ptr<Frozen> frozen;
      Rows expected;
      size_t num_rows;
      int64_t first;  // buckets below are released
    };
    std::vector<State> states;
    for (int64_t step = 1; step <= 150; ++step) {
      std::vector<uint64_t> keys(random() % 300);
      for (uint64_t& key : keys) key = random() % 2'000;
      const int64_t bucket = static_cast<int64_t>(random() % kNumBuckets);
      switch (random() % 9) {
        case 0:
          if (states.size() < 3) {
            states.push_back({table.Freeze(), Export(table), table.num_rows(), 0});
          }
          break;
        case 1:
          if (!states.empty()) {
            states.erase(states.begin() + static_cast<int64_t>(random() % states.size()));
          }
          break;
        case 2:
          table.DropBuckets(bucket, std::min<int64_t>(bucket + 400, kNumBuckets));
          break;
        case 3:
          if (random() % 4 == 0) table.Clear();
          break;
        case 4: {
          const Rows rows = Export(table, 0, bucket);  // goes back with other counters
          Rows other = rows;
          for (uint64_t& of_row : other.steps) of_row = 0;
          table.Import(other.ConstColumns(), other.keys.size());
          break;
        }
        case 5:
          if (!states.empty()) {
            State& state = states[random() % states.size()];
            state.frozen->ReleaseBuckets(bucket);
            state.first = std::max(state.first, bucket);
            state.expected = From(state.expected, state.first, table.layout());
          }
          break;
        case 6: {
          std::vector<float> out(keys.size() * kDim);
          table.Pull(keys.data(), keys.size(), true, out.data());
          [[fallthrough]];  // a push of what was pulled
        }
        default:
          PushOnes(&table, keys, step);
      }
      for (const State& state : states) {
        CHECK(Export(*state.frozen, state.first) == state.expected);
        CHECK_EQ(state.frozen->num_rows(), state.num_rows);
      }
    }
  }
}

TEST(RowsAreCopiedOnceAndOnlyThoseThatChange) {
  Table table(CountingRules(16), 64);
  const std::vector<uint64_t> all = Range(0, 200'000);
  PushOnes(&table, all, 1);
  const auto frozen = table.Freeze();
  CHECK_EQ(frozen->last_step(), 1);
  CHECK(frozen->memory_bytes() < 200'000);  // bits
  for (int64_t step = 2; step < 6; ++step) PushOnes(&table, Range(0, 20'000), step);
  PushOnes(&table, Range(300'000, 400'000), 6);  // new ones
  const size_t bytes = frozen->memory_bytes();
  CHECK(bytes > 20'000 * 72 && bytes < 20'000 * 72 * 5 / 2);
  CHECK_EQ(frozen->last_step(), 1);
}

TEST(ReleasedBucketsAreCopiedAndReadNoMore) {
  Table table(CountingRules(16), 8);
  const std::vector<uint64_t> keys = Range(0, 20'000);
  PushOnes(&table, keys, 1);
  const Rows before = Export(table);
  const auto frozen = table.Freeze(), half = table.Freeze();
  half->ReleaseBuckets(kNumBuckets / 2);
  half->ReleaseBuckets(7);  // they are
  PushOnes(&table, keys, 2);
  CHECK(Export(*frozen) == before);
  CHECK(Export(*half, kNumBuckets / 2) == From(before, kNumBuckets / 2, table.layout()));
  CHECK(half->memory_bytes() < frozen->memory_bytes() * 3 / 4);
  CHECK_THROWS(std::invalid_argument, Export(*half, kNumBuckets / 2 - 1));
  CHECK_THROWS(std::invalid_argument, half->ReleaseBuckets(kNumBuckets + 1));
  const size_t bytes = frozen->memory_bytes();
  frozen->ReleaseBuckets(kNumBuckets);
  CHECK(frozen->memory_bytes() < bytes);  // the keys are gone
  CHECK_EQ(Export(*frozen, kNumBuckets).keys.size(), 0u);
}

TEST(MemoryOfDroppedRowsIsUsedAgainButNotWhileTheyAreFrozen) {
  Table table(CountingRules(16), 4);
  const std::vector<uint64_t> some = Range(0, 20'000), others = Range(50'000, 70'000);
  PushOnes(&table, some, 1);
  const size_t bytes = table.memory_bytes();
  for (int round = 0; round < 5; ++round) {
    table.DropBuckets(0, kNumBuckets);
    CHECK_EQ(table.num_rows(), 0u);
    PushOnes(&table, round % 2 ? some : others, 2);
    CHECK_EQ(table.num_rows(), 20'000u);
  }
  CHECK(table.memory_bytes() < bytes * 5 / 4);
  const Rows before = Export(table);
  {
    const auto frozen = table.Freeze();
    table.DropBuckets(0, kNumBuckets);
    PushOnes(&table, some, 3);
    CHECK(Export(*frozen) == before);
    CHECK(table.memory_bytes() > bytes * 3 / 2);
  }
  PushOnes(&table, Range(90'000, 105'000), 4);
  CHECK(table.memory_bytes() < bytes * 5 / 2);
}

TEST(APushOfKeysThatWerePulledBeforeADropChangesTheirOwnRows) {
  Table table(CountingRules(kDim), 8);
  const std::vector<uint64_t> keys = Range(0, 3'000), others = Range(5'000, 8'000);
  std::vector<float> out(keys.size() * kDim);
  table.Pull(keys.data(), keys.size(), true, out.data());
  table.DropBuckets(0, 2'000);
  table.Pull(others.data(), others.size(), true, out.data());  // its rows lie where ours lay
  PushOnes(&table, keys, 1);
  const Rows rows = Export(table);
  CHECK_EQ(rows.keys.size(), keys.size() + others.size());
  CheckCounting(rows, kDim);
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    CHECK_EQ(rows.num_pushes[i], rows.keys[i] < 3'000 ? 1u : 0u);
  }
}

TEST(ThreadsThatChangeRowsDoNotChangeWhatIsFrozen) {
  constexpr int kNumRounds = 12;
  Table table(CountingRules(kDim), 4);
  const std::vector<uint64_t> keys = Range(0, 6'000);
  PushOnes(&table, keys, 1);
  const auto frozen = table.Freeze();
  const Rows expected = Export(table);
  const auto push = [&] {
    for (int64_t step = 2; step < kNumRounds; ++step) {
      PushOnes(&table, Range(0, 6'000 + 300 * static_cast<uint64_t>(step)), step);
    }
  };
  const auto drop = [&] {
    for (int64_t bucket = 0; bucket < kNumRounds; ++bucket) {
      table.DropBuckets(300 * bucket, 300 * bucket + 200);
    }
  };
  const auto clear = [&] { table.Clear(); };
  const auto import_rows = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      table.Import(expected.ConstColumns(), expected.keys.size());
    }
  };
  const auto export_rows = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      CHECK(Export(*frozen) == expected);
      CHECK(frozen->memory_bytes() > 0);
    }
  };
  const auto freeze = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      const auto other = table.Freeze();
      const Rows once = Export(*other);
      CheckCounting(once, kDim);
      CHECK_EQ(other->num_rows(), once.keys.size());
      CHECK(Export(*other) == once);
    }
  };
  RunTogether({push, import_rows, export_rows, freeze, drop});
  CHECK(Export(*frozen) == expected);
  RunTogether({push, export_rows, freeze, drop, clear});
  CHECK(Export(*frozen) == expected);
}

TEST(BucketRangesAreWithinAllBuckets) {
  const BucketRange buckets(3, 5);
  for (uint64_t bucket = 0; bucket < 8; ++bucket) {
    CHECK_EQ(buckets.HasBucketOf(bucket << kStripeTop | 77), bucket == 3 || bucket == 4);
  }
  Table table(CountingRules(1), 1);
  CHECK_THROWS(std::invalid_argument, table.DropBuckets(-1, 3));
  CHECK_THROWS(std::invalid_argument, table.DropBuckets(3, 2));
  CHECK_THROWS(std::invalid_argument, table.DropBuckets(0, kNumBuckets + 1));
  CHECK_THROWS(std::invalid_argument, Export(*table.Freeze(), 3, 2));
}

TEST(TurnsGoRoundUntilNoneHasMore) {
  std::vector<size_t> order;
  TakeTurns(3, [&](size_t i, size_t round) {
    order.push_back(10 * round + i);
    return round < i;
  });
  CHECK(order == (std::vector<size_t>{0, 1, 2, 10, 11, 12, 20, 21, 22}));
}

}  // namespace
}  // namespace ps_server
