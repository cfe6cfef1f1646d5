#include "stripe.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "hash.h"
#include "prefetch.h"

namespace ps_server {

Stripe::Stripe(const RowRules* rules, std::shared_ptr<Arena> arena, int directory_top)
    : rules_(rules),
      directory_top_(directory_top),
      arena_(std::move(arena)),
      index_(arena_.get(), directory_top),
      rows_(arena_.get(), rules->layout) {}

template <typename Ahead, typename Find, typename Load, typename Use>
void Stripe::ForEachRow(Items items, const Ahead& ahead, const Find& find, const Load& load,
                        const Use& use) const {
  // A step of the loop does a little of each, for different items: loads that wait
  // for their page's address hold up what is behind them, so they are spread out.
  RowRef rows[kRowAhead];  // of item i at i % kRowAhead, from look-up to use
  constexpr size_t kLookUp = kIndexAhead - kRowAhead;
  for (size_t step = 0; step < items.size + kIndexAhead; ++step) {
    if (step < items.size) ahead(items.first[step].hash);
    if (step >= kIndexAhead) {
      const size_t i = step - kIndexAhead;
      use(items.first[i], rows[i % kRowAhead]);
    }
    if (step >= kLookUp && step - kLookUp < items.size) {
      const size_t i = step - kLookUp;
      const uint32_t slot = find(i);
      RowRef& row = rows[i % kRowAhead];
      if (slot != Index::kMissing) {
        row = rows_.At(slot);
        load(items.first[i], row);
      } else {
        row = {nullptr, nullptr};
      }
    }
  }
}

uint64_t Stripe::Pull(Items items, bool insert, float* out, uint32_t* slots) {
  const size_t dim = rules_->layout.dim(), bytes = dim * sizeof(float);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto ahead = [&](uint64_t hash) { index_.Prefetch(hash); };
  const auto find = [&](size_t i) {
    const uint64_t hash = items.first[i].hash;
    return slots[i] = insert ? FindOrInsert(hash) : index_.Find(hash);
  };
  const auto load = [&](const Item&, RowRef row) { PrefetchLines(row.weights, bytes); };
  ForEachRow(items, ahead, find, load, [&](const Item& item, RowRef row) {
    float* const weights = out + item.position * dim;
    if (row.weights != nullptr) {
      std::memcpy(weights, row.weights, bytes);
    } else {
      rules_->initializer.Fill(KeyOfHash(item.hash), weights, dim);
    }
  });
  return generation_;
}

void Stripe::Push(const Merge& merge, const Optimizer::Update& update, uint32_t step, Slots known) {
  const size_t dim = rules_->layout.dim(), gradient_bytes = dim * sizeof(float);
  const size_t row_bytes = gradient_bytes + rules_->layout.num_state() * sizeof(float);
  const Items items = merge.items();
  const auto load = [&](const Item& item, RowRef row) {
    PrefetchLines(row.weights, row_bytes);
    Prefetch(row.meta);
    PrefetchLines(merge.gradient(item), gradient_bytes);
  };
  const auto use = [&](const Item& item, RowRef row) {
    update.Apply(row.weights, merge.gradient(item), dim);
    ++row.meta->num_pushes;
    row.meta->step = std::max(row.meta->step, step);
  };
  std::lock_guard<std::mutex> lock(mutex_);
  if (known.of_items != nullptr && known.generation == generation_) {
    const auto find = [&](size_t i) { return known.of_items[i]; };
    ForEachRow(items, [](uint64_t) {}, find, load, use);
  } else {
    const auto ahead = [&](uint64_t hash) { index_.Prefetch(hash); };
    const auto find = [&](size_t i) { return FindOrInsert(items.first[i].hash); };
    ForEachRow(items, ahead, find, load, use);
  }
}

void Stripe::Import(Items items, const ConstRowColumns& rows) {
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  std::lock_guard<std::mutex> lock(mutex_);
  const auto ahead = [&](uint64_t hash) { index_.Prefetch(hash); };
  const auto find = [&](size_t i) { return FindOrInsert(items.first[i].hash); };
  const auto load = [](const Item&, RowRef) {};
  ForEachRow(items, ahead, find, load, [&](const Item& item, RowRef row) {
    const size_t from = item.position;
    std::copy_n(rows.weights + from * dim, dim, row.weights);
    std::copy_n(rows.state + from * num_state, num_state, row.weights + dim);
    *row.meta = {rows.num_pushes[from], static_cast<uint32_t>(rows.steps[from])};
  });
}

uint64_t Stripe::List(uint32_t first_bucket, uint32_t end_bucket,
                      std::vector<uint64_t>* keys) const {
  const size_t num_before = keys->size();
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t generation = generation_;
  for (size_t segment = 0; segment < index_.num_segments(); ++segment) {
    index_.ForEach(segment, [&](uint64_t hash, uint32_t) {
      const uint32_t bucket = BucketOfHash(hash);
      if (first_bucket <= bucket && bucket < end_bucket) keys->push_back(KeyOfHash(hash));
    });
    lock.unlock();
    lock.lock();
    if (generation_ != generation) {  // cleared: what was listed is gone, start again
      generation = generation_;
      keys->resize(num_before);
      segment = static_cast<size_t>(-1);
    }
  }
  return generation;
}

void Stripe::Export(Items items, uint64_t generation, const RowColumns& out) const {
  constexpr size_t kRowsPerLock = 256;  // about 20 us
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  const auto load = [&](const Item&, RowRef row) {
    PrefetchLines(row.weights, (dim + num_state) * sizeof(float));
    Prefetch(row.meta);
  };
  const auto ahead = [&](uint64_t hash) { index_.Prefetch(hash); };
  const auto use = [&](const Item& item, RowRef row) {
    if (row.weights == nullptr) throw std::logic_error("a listed row is missing");
    const size_t to = item.position;
    out.keys[to] = KeyOfHash(item.hash);
    std::copy_n(row.weights, dim, out.weights + to * dim);
    std::copy_n(row.weights + dim, num_state, out.state + to * num_state);
    out.num_pushes[to] = row.meta->num_pushes;
    out.steps[to] = row.meta->step;
  };
  for (size_t first = 0; first < items.size; first += kRowsPerLock) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (generation_ != generation) throw std::runtime_error("the table was cleared in an export");
    const size_t size = std::min(items.size - first, kRowsPerLock);
    const Items part{items.first + first, size};
    const auto find = [&](size_t i) { return index_.Find(part.first[i].hash); };
    ForEachRow(part, ahead, find, load, use);
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
  rows_ = RowList(arena.get(), rules_->layout);
  arena_ = std::move(arena);  // the last stripe to do so frees the old one
  num_rows_ = 0;
  ++generation_;
}

uint32_t Stripe::FindOrInsert(uint64_t hash) {
  const uint32_t slot = index_.Find(hash);
  return slot != Index::kMissing ? slot : Insert(hash);
}

uint32_t Stripe::Insert(uint64_t hash) {
  const RowLayout& layout = rules_->layout;
  const uint32_t slot = rows_.Next();
  const RowRef row = rows_.At(slot);
  rules_->initializer.Fill(KeyOfHash(hash), row.weights, layout.dim());
  std::fill_n(row.weights + layout.dim(), layout.num_state(), rules_->optimizer.initial_state());
  *row.meta = {0, 0};
  index_.Insert(hash, slot);  // last, because it may throw
  rows_.Add();
  ++num_rows_;
  return slot;
}

}  // namespace ps_server
