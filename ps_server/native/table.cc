#include "table.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "bucket_range.h"
#include "hash.h"
#include "merge.h"
#include "partition.h"
#include "turns.h"

namespace ps_server {

Table::Table(const RowRules& rules, size_t num_stripes)
    : rules_(rules), stripe_bits_(0), arena_(std::make_shared<Arena>()) {
  if (num_stripes == 0 || num_stripes > kMaxStripes || (num_stripes & (num_stripes - 1)) != 0) {
    throw std::invalid_argument("num_stripes is a power of two up to " +
                                std::to_string(kMaxStripes) +
                                ", got num_stripes=" + std::to_string(num_stripes));
  }
  while ((size_t{1} << stripe_bits_) < num_stripes) ++stripe_bits_;
  for (size_t i = 0; i < num_stripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(&rules_, arena_, kStripeTop - stripe_bits_));
  }
}

template <typename Visit>
void Table::ForEachStripe(Visit&& visit) {
  // An odd multiplier reaches every stripe, and neighbours in time lie far apart.
  const size_t start = num_batches_.fetch_add(1, std::memory_order_relaxed) * 37;
  for (size_t i = 0; i < stripes_.size(); ++i) visit((start + i) & (stripes_.size() - 1));
}

void Table::Pull(const uint64_t* keys, size_t n, bool insert, float* out) {
  const auto found = std::make_shared<FoundRows>(keys, n, stripe_bits_);
  ForEachStripe([&](size_t stripe) {
    const Items items = found->partition.OfStripe(stripe);
    if (items.size == 0) return;
    uint32_t* const slots = found->SlotsOfStripe(stripe);
    found->generations[stripe] = stripes_[stripe]->Pull(items, insert, out, slots);
  });
  if (insert) recent_pulls_.Remember(found);
}

void Table::Push(const uint64_t* keys, size_t n, const float* gradients, int64_t step) {
  if (step < 1 || step > kMaxStep) {
    throw std::invalid_argument("a push has a step from 1 to " + std::to_string(kMaxStep) +
                                ", got step=" + std::to_string(step));
  }
  const std::shared_ptr<const FoundRows> found = recent_pulls_.Take(keys, n);
  std::optional<Partition> own;
  if (found == nullptr) own.emplace(keys, n, stripe_bits_);
  const Partition& partition = found != nullptr ? found->partition : *own;
  const Optimizer::Update update = rules_.optimizer.At(static_cast<uint64_t>(step));
  ForEachStripe([&](size_t stripe) {
    const Items items = partition.OfStripe(stripe);
    if (items.size == 0) return;
    const Merge merge(items, gradients, rules_.layout.dim());  // before the lock is taken
    Stripe::Slots known{nullptr, 0};
    if (found != nullptr && !merge.has_sums()) {
      known = {found->SlotsOfStripe(stripe), found->generations[stripe]};
    }
    stripes_[stripe]->Push(merge, update, static_cast<uint32_t>(step), known);
  });
  RaiseLastStep(step);
}

void Table::Import(const ConstRowColumns& rows, size_t n) {
  uint64_t last_step = 0;
  for (size_t i = 0; i < n; ++i) last_step = std::max(last_step, rows.steps[i]);
  if (last_step > uint64_t{kMaxStep}) {
    throw std::invalid_argument("a row has a step up to " + std::to_string(kMaxStep) +
                                ", got step=" + std::to_string(last_step));
  }
  const Partition partition(rows.keys, n, stripe_bits_);
  ForEachStripe([&](size_t stripe) {
    const Items items = partition.OfStripe(stripe);
    if (items.size > 0) stripes_[stripe]->Import(items, rows);
  });
  RaiseLastStep(static_cast<int64_t>(last_step));
}

std::unique_ptr<Frozen> Table::Freeze() const {
  return std::make_unique<Frozen>(rules_.layout, stripes_, last_step(),
                                  BucketRange(0, kNumBuckets));
}

void Table::DropBuckets(int64_t first_bucket, int64_t end_bucket) {
  const BucketRange buckets(first_bucket, end_bucket);
  TakeTurns(stripes_.size(),
            [&](size_t i, size_t segment) { return stripes_[i]->Drop(segment, buckets); });
}

void Table::Clear() {
  std::lock_guard<std::mutex> lock(clear_mutex_);
  arena_ = std::make_shared<Arena>();
  for (const auto& stripe : stripes_) stripe->Clear(arena_);
  last_step_.store(0, std::memory_order_relaxed);
}

size_t Table::num_rows() const {
  size_t num_rows = 0;
  for (const auto& stripe : stripes_) num_rows += stripe->num_rows();
  return num_rows;
}

size_t Table::memory_bytes() const {
  std::lock_guard<std::mutex> lock(clear_mutex_);
  size_t bytes = sizeof(*this) + recent_pulls_.BytesHeld() + arena_->BytesAllocated();
  for (const auto& stripe : stripes_) bytes += sizeof(Stripe) + stripe->DirectoryBytes();
  return bytes;
}

void Table::RaiseLastStep(int64_t step) {
  int64_t last = last_step_.load(std::memory_order_relaxed);
  while (last < step && !last_step_.compare_exchange_weak(last, step)) {
  }
}

}  // namespace ps_server
