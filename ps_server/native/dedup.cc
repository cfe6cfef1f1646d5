#include "dedup.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>

#include "hash.h"

namespace ps_server {
namespace {

// A hash table from keys to their numbers that is never cleared: a slot holds
// base + number, and what earlier batches left there is below the base. Each
// thread keeps one, so that a batch pays neither for its pages nor for zeros.
struct Slots {
  std::vector<uint32_t> slots;
  uint32_t base = 1;

  // Returns where numbers below n can be stored, `capacity` slots, none in use.
  uint32_t* Reserve(size_t capacity, size_t n) {
    if (slots.size() < capacity) {
      slots.assign(capacity, 0);
      base = 1;
    } else if (base > UINT32_MAX - n) {
      std::fill(slots.begin(), slots.end(), 0);
      base = 1;
    }
    return slots.data();
  }

  // Makes the slots in use free. One large batch does not hold its memory for ever.
  void Release(size_t num_used) {
    constexpr size_t kMaxKept = size_t{1} << 22;
    base += static_cast<uint32_t>(num_used);
    if (slots.size() > kMaxKept) std::vector<uint32_t>().swap(slots);
  }
};

}  // namespace

Dedup::Dedup(const uint64_t* keys, size_t n, const uint16_t* owners, size_t num_owners,
             int64_t* inverse)
    : counts_(num_owners) {
  if (n > UINT32_MAX) throw std::invalid_argument("a batch has fewer than 2**32 keys");
  const size_t last_owner = *std::max_element(owners, owners + kNumBuckets);
  if (last_owner >= num_owners) {
    throw std::invalid_argument("owners are below num_owners, got owner " +
                                std::to_string(last_owner) +
                                ", num_owners=" + std::to_string(num_owners));
  }
  FindUnique(keys, n, inverse);
  Group(owners, inverse, n);
}

void Dedup::CopyUnique(uint64_t* unique) const {
  for (size_t i = 0; i < num_unique_; ++i) unique[positions_[i]] = unique_[i];
}

// Numbers the keys in the order of their first occurrence. Whether a key is new
// cannot be predicted, so nothing branches on it: an unused slot reads as the
// next number, whose place holds this key already, and all that is left to ask is
// whether the key at the slot's number is this one.
void Dedup::FindUnique(const uint64_t* keys, size_t n, int64_t* inverse) {
  constexpr size_t kAhead = 16;  // a power of 2
  thread_local Slots scratch;
  size_t capacity = 16;
  while (capacity < 2 * n) capacity *= 2;
  const size_t mask = capacity - 1;
  uint32_t* const slots = scratch.Reserve(capacity, n);
  const uint32_t base = scratch.base;
  unique_.reset(new uint64_t[n + 1]);  // not make_unique, which would clear it
  uint64_t* const unique = unique_.get();
  uint32_t count = 0;

  std::array<size_t, kAhead> starts;  // where the search of each of the next keys begins
  for (size_t i = 0; i < std::min(n, kAhead); ++i) starts[i] = HashOfKey(keys[i]) & mask;
  for (size_t i = 0; i < n; ++i) {
    size_t at = starts[i % kAhead];
    if (i + kAhead < n) {
      const size_t next = HashOfKey(keys[i + kAhead]) & mask;
      __builtin_prefetch(&slots[next], 1);
      starts[i % kAhead] = next;
    }
    const uint64_t key = keys[i];
    unique[count] = key;
    uint32_t number = std::min(slots[at] - base, count);
    while (unique[number] != key) {
      at = (at + 1) & mask;
      number = std::min(slots[at] - base, count);
    }
    slots[at] = base + number;
    inverse[i] = number;
    count += number == count;
  }
  num_unique_ = count;
  scratch.Release(count);
}

// A counting sort of the unique keys by owner and stripe.
void Dedup::Group(const uint16_t* owners, int64_t* inverse, size_t n) {
  std::vector<uint32_t> group(num_unique_);
  std::vector<uint32_t> next((counts_.size() << kStripeBits) + 1);  // of each group, of the next
  for (size_t i = 0; i < num_unique_; ++i) {
    const uint64_t hash = HashOfKey(unique_[i]);
    const uint32_t owner = owners[BucketOfHash(hash)];
    group[i] = owner << kStripeBits | StripeOfHash(hash, kStripeBits);
    ++counts_[owner];
    ++next[group[i] + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  positions_.resize(num_unique_);
  for (size_t i = 0; i < num_unique_; ++i) positions_[i] = next[group[i]]++;
  for (size_t i = 0; i < n; ++i) inverse[i] = positions_[static_cast<size_t>(inverse[i])];
}

}  // namespace ps_server
