#include "table.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "counting_table.h"
#include "hash.h"

namespace ps_server {
namespace {

TEST(TableIsAMapFromKeyToRowOnAnyNumberOfStripes) {
  constexpr size_t kDim = 5;
  for (size_t num_stripes : {1, 2, 64, 1024}) {
    Table table(CountingRules(kDim), num_stripes);
    std::map<uint64_t, uint32_t> num_pushes;
    std::mt19937_64 random(11);
    for (int64_t step = 1; step <= 60; ++step) {
      std::vector<uint64_t> keys(random() % 400);
      for (uint64_t& key : keys) key = random() % 3'000 * 0x100000001u;
      std::map<uint64_t, uint32_t> times;
      for (uint64_t key : keys) ++times[key];
      std::vector<float> pulled(keys.size() * kDim, 7.0f);
      const bool insert = random() % 2;
      table.Pull(keys.data(), keys.size(), insert, pulled.data());
      for (size_t i = 0; i < pulled.size(); ++i) {
        const auto found = num_pushes.find(keys[i / kDim]);
        CHECK_EQ(pulled[i], found == num_pushes.end() ? 0 : -static_cast<float>(found->second));
      }
      if (insert) {
        for (uint64_t key : keys) num_pushes.try_emplace(key, 0);
      }
      CHECK_EQ(table.num_rows(), num_pushes.size());
      // A key that is there more than once moves once, by the mean of ones: 1.
      std::vector<float> gradients;
      for (uint64_t key : keys) {
        gradients.insert(gradients.end(), kDim, 1.0f);
        if (--times[key] > 0) std::fill(gradients.end() - kDim, gradients.end(), 0.0f);
      }
      table.Push(keys.data(), keys.size(), gradients.data(), step);
      for (const auto& [key, left] : times) {
        CHECK_EQ(left, 0u);
        ++num_pushes[key];
      }
      CHECK_EQ(table.num_rows(), num_pushes.size());
      CHECK_EQ(table.last_step(), step);
    }
    const Rows rows = Export(table);
    CheckCounting(rows, kDim);
    CHECK_EQ(rows.keys.size(), num_pushes.size());
    size_t i = 0;
    for (const auto& [key, count] : num_pushes) {
      CHECK_EQ(rows.keys[i], key);
      CHECK_EQ(rows.num_pushes[i++], count);
    }
    size_t num_split = 0;
    for (int64_t first = 0; first < kNumBuckets; first += 512) {
      num_split += Export(table, first, first + 512).keys.size();
    }
    CHECK_EQ(num_split, rows.keys.size());

    Table other(CountingRules(kDim), 1024 / num_stripes);
    other.Import(rows.ConstColumns(), rows.keys.size());
    const Rows moved = Export(other);
    CHECK(moved.keys == rows.keys && moved.weights == rows.weights);
    CHECK(moved.num_pushes == rows.num_pushes && moved.steps == rows.steps);
  }
}

TEST(PushesOfThreadsOnTheSameKeysAllCount) {
  constexpr size_t kDim = 3, kNumThreads = 5, kNumPushes = 30;
  for (size_t num_stripes : {1, 8}) {
    Table table(CountingRules(kDim), num_stripes);
    const std::vector<uint64_t> keys = Range(0, 300);
    const std::vector<float> ones(keys.size() * kDim, 1.0f);
    std::vector<std::function<void()>> tasks;
    for (size_t thread = 0; thread < kNumThreads; ++thread) {
      tasks.push_back([&] {
        for (size_t i = 1; i <= kNumPushes; ++i) {
          table.Push(keys.data(), keys.size(), ones.data(), static_cast<int64_t>(i));
        }
      });
    }
    RunTogether(tasks);
    const Rows rows = Export(table);
    CheckCounting(rows, kDim);
    CHECK(rows.keys == keys);
    for (uint32_t count : rows.num_pushes) CHECK_EQ(count, kNumThreads * kNumPushes);
    for (uint64_t step : rows.steps) CHECK_EQ(step, kNumPushes);
  }
}

TEST(ThreadsThatDoEverythingAtOnceSeeWholeRows) {
  constexpr size_t kDim = 9;
  constexpr uint64_t kNumKeys = 4'000;
  constexpr int kNumRounds = 25;
  Table table(CountingRules(kDim), 4);
  const std::vector<uint64_t> keys = Range(0, kNumKeys);
  const std::vector<float> ones(keys.size() * kDim, 1.0f);

  const auto push = [&] {
    for (int64_t step = 1; step <= kNumRounds; ++step) {
      table.Push(keys.data() + step, keys.size() - kNumRounds, ones.data(), step);
    }
  };
  const auto pull = [&](bool insert) {
    std::vector<float> out(keys.size() * kDim);
    for (int round = 0; round < kNumRounds; ++round) {
      table.Pull(keys.data(), keys.size(), insert, out.data());
      for (size_t i = 0; i < out.size(); ++i) CHECK_EQ(out[i], out[i / kDim * kDim]);
    }
  };
  const auto export_rows = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      const Rows rows = Export(table, round, kNumBuckets);
      CheckCounting(rows, kDim);
      table.Import(rows.ConstColumns(), rows.keys.size());
    }
  };
  const auto clear = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      table.Clear();
      CHECK(table.num_rows() <= kNumKeys);
      CHECK(table.memory_bytes() > 0);
      CHECK(table.last_step() <= kNumRounds);
      std::this_thread::yield();
    }
  };
  const auto drop = [&] {
    for (int round = 0; round < kNumRounds; ++round) {
      table.DropBuckets(100 * round, 100 * round + 300);
      std::this_thread::yield();
    }
  };
  RunTogether({push, push, [&] { pull(true); }, [&] { pull(false); }, export_rows, drop, clear});
  CheckCounting(Export(table), kDim);
  table.Clear();
  CHECK_EQ(Export(table).keys.size(), 0u);
}

TEST(ExportBesideInsertsHasAllRowsThatWereThereOnce) {
  constexpr size_t kDim = 2;
  for (int round = 0; round < 10; ++round) {  // a split between two segments of a list is rare
    Table table(CountingRules(kDim), 1);
    const std::vector<uint64_t> old = Range(0, 20'000);
    std::vector<float> out(old.size() * kDim);
    table.Pull(old.data(), old.size(), true, out.data());
    std::atomic<bool> is_over{false};
    const auto insert = [&](uint64_t first) {
      for (uint64_t key = first; key < first + 25'000; key += 10) {
        const std::vector<uint64_t> keys = Range(key, key + 10);
        std::vector<float> rows(keys.size() * kDim);
        table.Pull(keys.data(), keys.size(), true, rows.data());
      }
      is_over = true;
    };
    const auto export_rows = [&] {
      do {
        const Rows rows = Export(table);
        CheckCounting(rows, kDim);
        CHECK(std::includes(rows.keys.begin(), rows.keys.end(), old.begin(), old.end()));
      } while (!is_over);
    };
    RunTogether({[&] { insert(100'000); }, [&] { insert(200'000); }, export_rows, export_rows});
    CHECK_EQ(table.num_rows(), 70'000u);
  }
}

TEST(APushOfKeysThatWerePulledChangesTheirRowsWhateverCameBetween) {
  constexpr size_t kDim = 2;
  const std::vector<uint64_t> keys = Range(0, 3'000), others = Range(5'000, 9'000);
  const auto pull = [](Table* table, const std::vector<uint64_t>& which) {
    std::vector<float> out(which.size() * kDim);
    table->Pull(which.data(), which.size(), true, out.data());
  };
  const auto expect = [&](const Table& table, uint32_t times) {
    const Rows rows = Export(table);
    CheckCounting(rows, kDim);
    size_t num_found = 0;
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const bool is_ours = rows.keys[i] < 3'000;
      CHECK_EQ(rows.num_pushes[i], is_ours ? times : 0);
      num_found += is_ours;
    }
    CHECK_EQ(num_found, keys.size());
  };
  const std::vector<float> ones(keys.size() * kDim, 1.0f);
  for (size_t num_stripes : {1, 64}) {
    Table table(CountingRules(kDim), num_stripes);
    const auto push = [&](int64_t step) {
      table.Push(keys.data(), keys.size(), ones.data(), step);
    };
    pull(&table, keys);
    pull(&table, others);  // the index grows: rows stay where they are
    push(1);
    expect(table, 1);
    push(2);  // nothing was pulled for it
    expect(table, 2);
    pull(&table, keys);
    table.Clear();
    pull(&table, others);  // its rows lie where ours lay
    push(1);
    expect(table, 1);
    pull(&table, keys);
    table.Clear();
    push(1);  // there is no row at all
    expect(table, 1);
  }
}

TEST(KeysThatFillAStripeAreRefusedAndTheRowsStay) {
  constexpr size_t kNumKeys = 4'000;
  Table table(CountingRules(1), 1);
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < kNumKeys; ++i) keys.push_back(KeyOfHash(i));  // no other bit differs
  std::vector<float> weights(kNumKeys), ones(kNumKeys, 1.0f);
  CHECK_THROWS(std::length_error, table.Push(keys.data(), keys.size(), ones.data(), 1));
  const size_t num_rows = table.num_rows();
  CHECK(num_rows > 1'000 && num_rows < kNumKeys);
  const Rows rows = Export(table);
  CHECK_EQ(rows.keys.size(), num_rows);
  CheckCounting(rows, 1);
  table.Pull(keys.data(), keys.size(), false, weights.data());
  table.Clear();
  table.Push(keys.data(), 1'000, ones.data(), 1);
  CHECK_EQ(table.num_rows(), 1'000u);
}

TEST(WrongArgumentsAreRefused) {
  const uint64_t key = 1;
  const float one = 1;
  Table table(CountingRules(1), 1);
  for (int64_t step : {int64_t{-1}, int64_t{0}, Table::kMaxStep + 1}) {
    CHECK_THROWS(std::invalid_argument, table.Push(&key, 1, &one, step));
  }
  for (size_t num_stripes : {0, 3, 2048}) {
    CHECK_THROWS(std::invalid_argument, Table(CountingRules(1), num_stripes));
  }
  CHECK_THROWS(std::invalid_argument, Export(table, -1, 3));
  CHECK_THROWS(std::invalid_argument, Export(table, 3, 2));
  CHECK_THROWS(std::invalid_argument, Export(table, 0, kNumBuckets + 1));
  CHECK_EQ(table.num_rows(), 0u);
}

}  // namespace
}  // namespace ps_server
