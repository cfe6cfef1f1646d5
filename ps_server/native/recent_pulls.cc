#include "recent_pulls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "hash.h"

namespace ps_server {
namespace {

bool IsOf(const FoundRows& found, const uint64_t* keys) {
  const Items items = found.partition.All();
  for (size_t i = 0; i < items.size; ++i) {
    const Item& item = items.first[i];
    if (HashOfKey(keys[item.position]) != item.hash) return false;
  }
  return true;
}

}  // namespace

void RecentPulls::Remember(std::shared_ptr<const FoundRows> found) {
  if (found->num_keys == 0 || found->num_keys > kMaxKeys) return;
  std::vector<std::shared_ptr<const FoundRows>> forgotten;  // is freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  num_keys_ += found->num_keys;
  pulls_.push_back(std::move(found));
  while (num_keys_ > kMaxKeys || pulls_.size() > kMaxPulls) {
    num_keys_ -= pulls_.front()->num_keys;
    forgotten.push_back(std::move(pulls_.front()));
    pulls_.pop_front();
  }
}

std::shared_ptr<const FoundRows> RecentPulls::Take(const uint64_t* keys, size_t n) {
  std::vector<std::shared_ptr<const FoundRows>> candidates;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::copy_if(pulls_.rbegin(), pulls_.rend(), std::back_inserter(candidates),
                 [n](const auto& found) { return found->num_keys == n; });
  }
  for (const auto& found : candidates) {
    if (!IsOf(*found, keys)) continue;  // nearly always by the first key
    std::lock_guard<std::mutex> lock(mutex_);
    const auto held = std::find(pulls_.begin(), pulls_.end(), found);
    if (held == pulls_.end()) continue;  // another push of the same keys was first
    pulls_.erase(held);
    num_keys_ -= n;
    return found;
  }
  return nullptr;
}

size_t RecentPulls::BytesHeld() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_keys_ * (sizeof(Item) + sizeof(uint32_t));
}

}  // namespace ps_server
