#include "key_index.h"

#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

TEST(KeysAreNumberedAsAMapWould) {
  std::mt19937_64 random(3);
  for (uint64_t num_distinct : {uint64_t{1}, uint64_t{50}, uint64_t{20000}}) {
    KeyIndex index;
    std::unordered_map<uint64_t, int64_t> expected;
    for (int batch = 0; batch < 30; ++batch) {
      std::vector<uint64_t> keys(random() % 2000);
      for (uint64_t& key : keys) key = random() % num_distinct << 20;
      std::vector<int64_t> numbers(keys.size() + 1, -77);
      const bool insert = random() % 2 == 0;
      index.Find(keys.data(), keys.size(), insert, numbers.data());
      CHECK_EQ(numbers.back(), -77);  // nothing past the end
      for (size_t i = 0; i < keys.size(); ++i) {
        if (insert) expected.emplace(keys[i], static_cast<int64_t>(expected.size()));
        const auto found = expected.find(keys[i]);
        CHECK_EQ(numbers[i], found == expected.end() ? KeyIndex::kMissing : found->second);
      }
      CHECK_EQ(index.size(), expected.size());
    }
    const std::vector<uint64_t> keys = index.keys();
    for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(expected[keys[i]], static_cast<int64_t>(i));
  }
}

TEST(ThreadsThatInsertAtOnceAgreeOnTheNumbers) {
  KeyIndex index;
  std::vector<std::vector<int64_t>> numbers(4, std::vector<int64_t>(5000));
  std::vector<std::thread> threads;
  for (auto& found : numbers) {
    threads.emplace_back([&index, &found] {
      for (uint64_t key = 0; key < found.size(); ++key) index.Find(&key, 1, true, &found[key]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(index.size(), numbers[0].size());
  for (const auto& found : numbers) CHECK(found == numbers[0]);
}

}  // namespace
}  // namespace ps_server
