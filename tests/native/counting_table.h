// A table whose rows count their pushes, and what tests of tables do with it.

#ifndef TESTS_NATIVE_COUNTING_TABLE_H_
#define TESTS_NATIVE_COUNTING_TABLE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "check.h"
#include "hash.h"
#include "table.h"

namespace ps_server {

// With gradients of ones a row of this table is -num_pushes everywhere: a row
// that is seen half written, or a push that is lost, shows.
inline RowRules CountingRules(size_t dim) {
  return {RowLayout(dim, 0), Optimizer::Sgd(1), Initializer::Constant(0)};
}

struct Rows {
  std::vector<uint64_t> keys;
  std::vector<float> weights, state;
  std::vector<uint32_t> num_pushes;
  std::vector<uint64_t> steps;

  Rows(size_t n, const RowLayout& layout)
      : keys(n),
        weights(n * layout.dim()),
        state(n * layout.num_state()),
        num_pushes(n),
        steps(n) {}

  RowColumns Columns() {
    return {keys.data(), weights.data(), state.data(), num_pushes.data(), steps.data()};
  }

  bool operator==(const Rows& other) const {
    return keys == other.keys && weights == other.weights && state == other.state &&
           num_pushes == other.num_pushes && steps == other.steps;
  }

  ConstRowColumns ConstColumns() const {
    return {keys.data(), weights.data(), state.data(), num_pushes.data(), steps.data()};
  }
};

// Of a Table, or of one that is Frozen.
template <typename From>
Rows Export(From& table, int64_t first = 0, int64_t end = kNumBuckets) {
  Rows rows(0, table.layout());
  table.Export(first, end, [&](size_t n) {
    rows = Rows(n, table.layout());
    return rows.Columns();
  });
  return rows;
}

// Keys ascend, and each row is -num_pushes everywhere.
inline void CheckCounting(const Rows& rows, size_t dim) {
  CHECK(std::is_sorted(rows.keys.begin(), rows.keys.end()));
  CHECK(std::adjacent_find(rows.keys.begin(), rows.keys.end()) == rows.keys.end());
  for (size_t i = 0; i < rows.weights.size(); ++i) {
    CHECK_EQ(rows.weights[i], -static_cast<float>(rows.num_pushes[i / dim]));
  }
}

// The keys from one to before another.
inline std::vector<uint64_t> Range(uint64_t first, uint64_t end) {
  std::vector<uint64_t> keys;
  for (uint64_t key = first; key < end; ++key) keys.push_back(key);
  return keys;
}

// Pushes ones to keys.
inline void PushOnes(Table* table, const std::vector<uint64_t>& keys, int64_t step) {
  const std::vector<float> ones(keys.size() * table->layout().dim(), 1.0f);
  table->Push(keys.data(), keys.size(), ones.data(), step);
}

// Runs the tasks in threads that start at the same time.
inline void RunTogether(const std::vector<std::function<void()>>& tasks) {
  std::atomic<size_t> num_waiting{tasks.size()};
  std::vector<std::thread> threads;
  for (const auto& task : tasks) {
    threads.emplace_back([&] {
      --num_waiting;
      while (num_waiting > 0) std::this_thread::yield();
      task();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ps_server

#endif  // TESTS_NATIVE_COUNTING_TABLE_H_
