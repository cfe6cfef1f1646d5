#include "stripe.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "hash.h"

namespace ps_server {
namespace {

constexpr size_t kCacheLine = 64;

// Starts to load `bytes` bytes at `start`, at most the first four lines: the
// CPU's own prefetcher sees the rest coming.
void PrefetchLines(const void* start, size_t bytes) {
  const char* const first = static_cast<const char*>(start);
  const char* const end = first + std::min(bytes, 4 * kCacheLine);
  for (const char* at = first; at < end; at += kCacheLine) __builtin_prefetch(at);
}

}  // namespace

Stripe::Stripe(const RowRules* rules, std::shared_ptr<Arena> arena, int directory_top)
    : rules_(rules),
      directory_top_(directory_top),
      arena_(std::move(arena)),
      index_(arena_.get(), directory_top),
      rows_(arena_.get(), rules->layout.stride()),
      metas_(arena_.get(), sizeof(RowMeta)) {}

void Stripe::Pull(Items items, bool insert, float* out) {
  const size_t dim = rules_->layout.dim();
  uint32_t slots[kGroup];
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t first = 0; first < items.size; first += kGroup) {
    Locate(items, first, insert, slots);
    const size_t n = std::min(kGroup, items.size - first);
    for (size_t i = 0; i < n; ++i) {
      if (slots[i] != Index::kMissing) {
        PrefetchLines(rows_.At<float>(slots[i]), dim * sizeof(float));
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const Item& item = items.first[first + i];
      float* const weights = out + item.position * dim;
      if (slots[i] != Index::kMissing) {
        std::memcpy(weights, rows_.At<float>(slots[i]), dim * sizeof(float));
      } else {
        rules_->initializer.Fill(KeyOfHash(item.hash), weights, dim);
      }
    }
  }
}

void Stripe::Push(const Merge& merge, const Optimizer::Update& update, uint32_t step) {
  const RowLayout& layout = rules_->layout;
  const size_t row_bytes = (layout.dim() + layout.num_state()) * sizeof(float);
  const Items items = merge.items();
  uint32_t slots[kGroup];
  float* rows[kGroup];
  const float* gradients[kGroup];
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t first = 0; first < items.size; first += kGroup) {
    Locate(items, first, /*insert=*/true, slots);
    const size_t n = std::min(kGroup, items.size - first);
    for (size_t i = 0; i < n; ++i) {
      rows[i] = rows_.At<float>(slots[i]);
      gradients[i] = merge.gradient(items.first[first + i]);
      PrefetchLines(rows[i], row_bytes);
      PrefetchLines(gradients[i], layout.dim() * sizeof(float));
      __builtin_prefetch(metas_.At<RowMeta>(slots[i]), 1);
    }
    update.Apply(rows, gradients, n, layout.dim());
    for (size_t i = 0; i < n; ++i) {
      RowMeta* const meta = metas_.At<RowMeta>(slots[i]);
      ++meta->num_pushes;
      meta->step = std::max(meta->step, step);
    }
  }
}

void Stripe::Import(Items items, const ConstRowColumns& rows) {
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  uint32_t slots[kGroup];
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t first = 0; first < items.size; first += kGroup) {
    Locate(items, first, /*insert=*/true, slots);
    for (size_t i = 0; i < std::min(kGroup, items.size - first); ++i) {
      const size_t from = items.first[first + i].position;
      float* const row = rows_.At<float>(slots[i]);
      std::copy_n(rows.weights + from * dim, dim, row);
      std::copy_n(rows.state + from * num_state, num_state, row + dim);
      *metas_.At<RowMeta>(slots[i]) = {rows.num_pushes[from],
                                       static_cast<uint32_t>(rows.steps[from])};
    }
  }
}

uint64_t Stripe::List(uint32_t first_bucket, uint32_t end_bucket, uint32_t stripe,
                      std::vector<RowPlace>* places) const {
  const size_t num_before = places->size();
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t generation = generation_;
  for (size_t segment = 0; segment < index_.num_segments(); ++segment) {
    index_.ForEach(segment, [&](uint64_t hash, uint32_t slot) {
      const uint32_t bucket = BucketOfHash(hash);
      if (first_bucket <= bucket && bucket < end_bucket) {
        places->push_back({KeyOfHash(hash), stripe, slot});
      }
    });
    lock.unlock();
    lock.lock();
    if (generation_ != generation) {  // cleared: what was listed is gone, start again
      generation = generation_;
      places->resize(num_before);
      segment = static_cast<size_t>(-1);
    }
  }
  return generation;
}

void Stripe::Export(const std::vector<RowPlace>& places, const uint32_t* positions, size_t n,
                    uint64_t generation, const RowColumns& out) const {
  constexpr size_t kRowsPerLock = 256;  // about 20 us
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  for (size_t first = 0; first < n; first += kRowsPerLock) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (generation_ != generation) throw std::runtime_error("the table was cleared in an export");
    for (size_t i = first; i < std::min(n, first + kRowsPerLock); ++i) {
      const size_t to = positions[i];
      const uint32_t slot = places[to].slot;
      const float* const row = rows_.At<float>(slot);
      const RowMeta& meta = *metas_.At<RowMeta>(slot);
      out.keys[to] = places[to].key;
      std::copy_n(row, dim, out.weights + to * dim);
      std::copy_n(row + dim, num_state, out.state + to * num_state);
      out.num_pushes[to] = meta.num_pushes;
      out.steps[to] = meta.step;
    }
  }
}

size_t Stripe::num_rows() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_rows_;
}

size_t Stripe::DirectoryBytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return index_.DirectoryBytes();
}

void Stripe::Clear(std::shared_ptr<Arena> arena) {
  std::lock_guard<std::mutex> lock(mutex_);
  index_ = Index(arena.get(), directory_top_);
  rows_ = SlabList(arena.get(), rules_->layout.stride());
  metas_ = SlabList(arena.get(), sizeof(RowMeta));
  arena_ = std::move(arena);  // the last stripe to do so frees the old one
  num_rows_ = 0;
  ++generation_;
}

void Stripe::Locate(Items items, size_t first, bool insert, uint32_t* slots) {
  const size_t end = std::min(items.size, first + kGroup);
  if (first == 0) {
    for (size_t i = 0; i < end; ++i) index_.Prefetch(items.first[i].hash);
  }
  for (size_t i = end; i < std::min(items.size, end + kGroup); ++i) {
    index_.Prefetch(items.first[i].hash);
  }
  for (size_t i = first; i < end; ++i) {
    const uint64_t hash = items.first[i].hash;
    uint32_t slot = index_.Find(hash);
    if (slot == Index::kMissing && insert) slot = Insert(hash);
    slots[i - first] = slot;
  }
}

uint32_t Stripe::Insert(uint64_t hash) {
  const RowLayout& layout = rules_->layout;
  const uint32_t slot = num_rows_;
  rows_.Reserve(slot);
  metas_.Reserve(slot);
  float* const row = rows_.At<float>(slot);
  rules_->initializer.Fill(KeyOfHash(hash), row, layout.dim());
  std::fill_n(row + layout.dim(), layout.num_state(), rules_->optimizer.initial_state());
  *metas_.At<RowMeta>(slot) = {0, 0};
  index_.Insert(hash, slot);  // last, because it may throw
  ++num_rows_;
  return slot;
}

}  // namespace ps_server
