#include "key_index.h"

#include <algorithm>

#include "hash.h"

namespace ps_server {
namespace {

constexpr size_t kAhead = 16;  // keys: a bucket takes about as long to load

}  // namespace

KeyIndex::KeyIndex() : index_(&arena_, kStripeTop) {}

void KeyIndex::Find(const uint64_t* keys, size_t n, bool insert, int64_t* numbers) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < std::min(n, kAhead); ++i) index_.Prefetch(HashOfKey(keys[i]));
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) index_.Prefetch(HashOfKey(keys[i + kAhead]));
    const uint64_t hash = HashOfKey(keys[i]);
    const uint32_t found = index_.Find(hash);
    if (found != Index::kMissing) {
      numbers[i] = found;
    } else if (!insert) {
      numbers[i] = kMissing;
    } else {
      const size_t number = keys_.size();
      keys_.push_back(keys[i]);
      try {
        index_.Insert(hash, static_cast<uint32_t>(number));
      } catch (...) {
        keys_.pop_back();
        throw;
      }
      numbers[i] = static_cast<int64_t>(number);
    }
  }
}

size_t KeyIndex::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keys_.size();
}

std::vector<uint64_t> KeyIndex::keys() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keys_;
}

}  // namespace ps_server
