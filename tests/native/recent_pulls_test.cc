#include "recent_pulls.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

std::vector<uint64_t> Range(uint64_t first, size_t n) {
  std::vector<uint64_t> keys;
  for (uint64_t key = first; key < first + n; ++key) keys.push_back(key);
  return keys;
}

std::shared_ptr<const FoundRows> Found(const std::vector<uint64_t>& keys) {
  return std::make_shared<FoundRows>(keys.data(), keys.size(), 3);
}

std::shared_ptr<const FoundRows> Take(RecentPulls* recent, const std::vector<uint64_t>& keys) {
  return recent->Take(keys.data(), keys.size());
}

TEST(APullIsFoundByItsKeysInItsOrderAlone) {
  RecentPulls recent;
  const std::vector<uint64_t> keys = Range(100, 50);
  const auto found = Found(keys);
  recent.Remember(found);
  for (size_t i = 0; i < keys.size(); ++i) {
    std::vector<uint64_t> others = keys;
    others[i] += 1'000;
    CHECK(Take(&recent, others) == nullptr);
    others = keys;
    std::swap(others[i], others[(i + 1) % keys.size()]);
    CHECK(Take(&recent, others) == nullptr);
  }
  CHECK(Take(&recent, Range(100, 49)) == nullptr);
  CHECK(Take(&recent, Range(100, 51)) == nullptr);
  CHECK(Take(&recent, {}) == nullptr);
  CHECK(Take(&recent, keys) == found);
}

TEST(APullIsTakenOnceTheLatestFirst) {
  RecentPulls recent;
  const std::vector<uint64_t> keys = Range(7, 20);
  const auto first = Found(keys), second = Found(keys);
  recent.Remember(first);
  recent.Remember(Found(Range(1'000, 20)));
  recent.Remember(second);
  CHECK(Take(&recent, keys) == second);
  CHECK(Take(&recent, keys) == first);
  CHECK(Take(&recent, keys) == nullptr);
}

TEST(TheOldestPullsAreForgotten) {
  RecentPulls recent;
  constexpr size_t kNumKeys = RecentPulls::kMaxKeys / 4;
  for (uint64_t pull = 0; pull < 6; ++pull) recent.Remember(Found(Range(pull << 32, kNumKeys)));
  recent.Remember(Found(Range(9, RecentPulls::kMaxKeys + 1)));  // forgets none for its sake
  for (uint64_t pull = 0; pull < 6; ++pull) {
    CHECK_EQ(Take(&recent, Range(pull << 32, kNumKeys)) != nullptr, pull >= 2);
  }
}

TEST(ManySmallPullsThatNoPushFollowsAreForgotten) {
  RecentPulls recent;
  for (uint64_t key = 0; key <= RecentPulls::kMaxPulls; ++key) recent.Remember(Found({key}));
  CHECK(Take(&recent, {0}) == nullptr);
  CHECK(Take(&recent, {1}) != nullptr);
  CHECK(Take(&recent, {RecentPulls::kMaxPulls}) != nullptr);
}

}  // namespace
}  // namespace ps_server
