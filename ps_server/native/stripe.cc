#include "stripe.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "hash.h"
#include "prefetch.h"

namespace ps_server {

Stripe::Content::Content(std::shared_ptr<Arena> arena, const RowLayout& layout, int directory_top)
    : arena(std::move(arena)),
      index(this->arena.get(), directory_top),
      rows(this->arena.get(), layout) {}

Stripe::Stripe(const RowRules* rules, std::shared_ptr<Arena> arena, int directory_top)
    : rules_(rules),
      directory_top_(directory_top),
      content_(std::make_shared<Content>(std::move(arena), rules->layout, directory_top)) {}

template <typename Ahead, typename Find, typename Load, typename Use>
void Stripe::ForEachRow(Items items, const Ahead& ahead, const Find& find, const Load& load,
                        const Use& use) {
  // A step of the loop does a little of each, for different items: loads that wait
  // for their page's address hold up what is behind them, so they are spread out.
  Found found[kRowAhead];  // of item i at i % kRowAhead, from look-up to use
  constexpr size_t kLookUp = kIndexAhead - kRowAhead;
  for (size_t step = 0; step < items.size + kIndexAhead; ++step) {
    if (step < items.size) ahead(items.first[step].hash);
    if (step >= kIndexAhead) {
      const size_t i = step - kIndexAhead;
      use(items.first[i], found[i % kRowAhead]);
    }
    if (step >= kLookUp && step - kLookUp < items.size) {
      const size_t i = step - kLookUp;
      found[i % kRowAhead] = find(i);
      if (found[i % kRowAhead].row.weights != nullptr) {
        load(items.first[i], found[i % kRowAhead]);
      }
    }
  }
}

uint64_t Stripe::Pull(Items items, bool insert, float* out, uint32_t* slots) {
  const size_t dim = rules_->layout.dim(), bytes = dim * sizeof(float);
  std::lock_guard<std::mutex> lock(mutex_);
  const Index& index = content_->index;
  const auto ahead = [&](uint64_t hash) { index.Prefetch(hash); };
  const auto find = [&](size_t i) {
    const uint64_t hash = items.first[i].hash;
    slots[i] = insert ? FindOrInsert(hash) : index.Find(hash);
    return At(slots[i]);
  };
  const auto load = [&](const Item&, const Found& found) {
    PrefetchLines(found.row.weights, bytes);
  };
  ForEachRow(items, ahead, find, load, [&](const Item& item, const Found& found) {
    float* const weights = out + item.position * dim;
    if (found.row.weights != nullptr) {
      std::memcpy(weights, found.row.weights, bytes);
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
  const auto load = [&](const Item& item, const Found& found) {
    PrefetchLines(found.row.weights, row_bytes);
    Prefetch(found.row.meta);
    PrefetchLines(merge.gradient(item), gradient_bytes);
    PrefetchKept(found.slot);
  };
  const auto use = [&](const Item& item, const Found& found) {
    WillChange(item.hash, found);
    const RowRef row = found.row;
    update.Apply(row.weights, merge.gradient(item), dim);
    ++row.meta->num_pushes;
    row.meta->step = std::max(row.meta->step, step);
  };
  std::lock_guard<std::mutex> lock(mutex_);
  if (known.of_items != nullptr && known.generation == generation_) {
    const auto find = [&](size_t i) { return At(known.of_items[i]); };
    ForEachRow(items, [](uint64_t) {}, find, load, use);
  } else {
    const Index& index = content_->index;
    const auto ahead = [&](uint64_t hash) { index.Prefetch(hash); };
    const auto find = [&](size_t i) { return At(FindOrInsert(items.first[i].hash)); };
    ForEachRow(items, ahead, find, load, use);
  }
}

void Stripe::Import(Items items, const ConstRowColumns& rows) {
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  std::lock_guard<std::mutex> lock(mutex_);
  const Index& index = content_->index;
  const auto ahead = [&](uint64_t hash) { index.Prefetch(hash); };
  const auto find = [&](size_t i) { return At(FindOrInsert(items.first[i].hash)); };
  const auto load = [&](const Item&, const Found& found) { PrefetchKept(found.slot); };
  ForEachRow(items, ahead, find, load, [&](const Item& item, const Found& found) {
    WillChange(item.hash, found);
    const RowRef row = found.row;
    const size_t from = item.position;
    std::copy_n(rows.weights + from * dim, dim, row.weights);
    std::copy_n(rows.state + from * num_state, num_state, row.weights + dim);
    *row.meta = {rows.num_pushes[from], static_cast<uint32_t>(rows.steps[from])};
  });
}

Stripe::Frozen::Frozen(Stripe* stripe, Arena* copies)
    : stripe_(stripe), kept_(copies, stripe->rules_->layout, stripe->directory_top_) {}

Stripe::Frozen::~Frozen() { stripe_->Release(this); }

std::unique_ptr<Stripe::Frozen> Stripe::Freeze(Arena* copies, const BucketRange& buckets) {
  std::unique_ptr<Frozen> frozen(new Frozen(this, copies));  // the constructor is ours alone
  size_t end = 0;
  for (;;) {
    frozen->kept_.Reserve(end + end / 8);  // without the lock, as it takes time: rows may come
    std::lock_guard<std::mutex> lock(mutex_);
    end = content_->rows.end();
    if (!frozen->kept_.Freeze(content_->rows.end(), buckets)) continue;
    frozen_.push_back(frozen.get());
    frozen->content_ = content_;
    frozen->num_rows_ = content_->num_rows;
    return frozen;
  }
}

void Stripe::Release(const Frozen* frozen) {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen_.erase(std::remove(frozen_.begin(), frozen_.end(), frozen), frozen_.end());
}

void Stripe::Narrow(Frozen* frozen, const BucketRange& buckets) {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen->kept_.Narrow(buckets);
}

bool Stripe::IndexCopies(Frozen* frozen, size_t max_copies) {
  std::lock_guard<std::mutex> lock(mutex_);
  return frozen->kept_.IndexCopies(max_copies);
}

bool Stripe::List(const Frozen& frozen, bool is_kept, size_t segment, const BucketRange& buckets,
                  std::vector<uint64_t>* hashes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Index& index = is_kept ? frozen.kept_.index() : frozen.content_->index;
  if (segment >= index.num_segments()) return false;
  index.ForEach(segment, [&](uint64_t hash, uint32_t slot) {
    if (!is_kept && !frozen.kept_.IsOfFreeze(slot)) return;
    if (buckets.HasBucketOf(hash)) hashes->push_back(hash);
  });
  return segment + 1 < index.num_segments();
}

void Stripe::Export(Frozen* frozen, Items items, const RowColumns& out) {
  const size_t dim = rules_->layout.dim(), num_state = rules_->layout.num_state();
  std::lock_guard<std::mutex> lock(mutex_);
  frozen->kept_.IndexCopies(SIZE_MAX);
  const Content& content = *frozen->content_;
  const KeptRows& kept = frozen->kept_;
  const auto ahead = [&](uint64_t hash) {
    content.index.Prefetch(hash);
    kept.Prefetch(hash);
  };
  const auto find = [&](size_t i) -> Found {
    const uint64_t hash = items.first[i].hash;
    const uint32_t slot = content.index.Find(hash);
    if (kept.Wants(hash, slot)) return {slot, content.rows.At(slot)};
    return {slot, kept.Find(hash)};
  };
  const auto load = [&](const Item&, const Found& found) {
    PrefetchLines(found.row.weights, (dim + num_state) * sizeof(float));
    Prefetch(found.row.meta);
  };
  ForEachRow(items, ahead, find, load, [&](const Item& item, const Found& found) {
    const RowRef row = found.row;
    if (row.weights == nullptr) throw std::logic_error("a listed row is missing");
    const size_t to = item.position;
    out.keys[to] = KeyOfHash(item.hash);
    std::copy_n(row.weights, dim, out.weights + to * dim);
    std::copy_n(row.weights + dim, num_state, out.state + to * num_state);
    out.num_pushes[to] = row.meta->num_pushes;
    out.steps[to] = row.meta->step;
  });
}

bool Stripe::Drop(size_t segment, const BucketRange& buckets) {
  std::lock_guard<std::mutex> lock(mutex_);
  Index& index = content_->index;
  if (segment >= index.num_segments()) return false;
  size_t num_dropped = 0;
  index.ForEach(segment, [&](uint64_t hash, uint32_t slot) {
    if (!buckets.HasBucketOf(hash)) return;
    WillChange(hash, At(slot));
    ++num_dropped;
  });
  if (num_dropped > 0) {  // nothing below throws
    index.EraseIf(segment, [&](uint64_t hash, uint32_t slot) {
      if (!buckets.HasBucketOf(hash)) return false;
      content_->rows.Free(slot);
      return true;
    });
    content_->num_rows -= num_dropped;
    ++generation_;
  }
  return segment + 1 < index.num_segments();
}

size_t Stripe::num_rows() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return content_->num_rows;
}

size_t Stripe::DirectoryBytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return content_->index.DirectoryBytes();
}

size_t Stripe::OwnBytes(const Frozen& frozen) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return frozen.kept_.OwnBytes();
}

void Stripe::Clear(std::shared_ptr<Arena> arena) {
  auto content = std::make_shared<Content>(std::move(arena), rules_->layout, directory_top_);
  std::lock_guard<std::mutex> lock(mutex_);
  content_.swap(content);  // the old one goes after the lock; with the last stripe's, their arena
  frozen_.clear();         // what they have of the old content changes no more
  ++generation_;
}

uint32_t Stripe::FindOrInsert(uint64_t hash) {
  const uint32_t slot = content_->index.Find(hash);
  return slot != Index::kMissing ? slot : Insert(hash);
}

uint32_t Stripe::Insert(uint64_t hash) {
  const RowLayout& layout = rules_->layout;
  RowList& rows = content_->rows;
  const uint32_t slot = rows.Next(/*may_reuse=*/frozen_.empty());
  content_->index.Insert(hash, slot);
  rows.Add(slot);
  ++content_->num_rows;
  const RowRef row = rows.At(slot);
  rules_->initializer.Fill(KeyOfHash(hash), row.weights, layout.dim());
  std::fill_n(row.weights + layout.dim(), layout.num_state(), rules_->optimizer.initial_state());
  *row.meta = {0, 0};
  return slot;
}

Stripe::Found Stripe::At(uint32_t slot) const {
  if (slot == Index::kMissing) return {slot, {nullptr, nullptr}};
  return {slot, content_->rows.At(slot)};
}

void Stripe::PrefetchKept(uint32_t slot) const {
  for (const Frozen* const frozen : frozen_) frozen->kept_.PrefetchIsKept(slot);
}

void Stripe::WillChange(uint64_t hash, const Found& found) {
  for (Frozen* const frozen : frozen_) {
    if (frozen->kept_.Wants(hash, found.slot)) frozen->kept_.Keep(hash, found.slot, found.row);
  }
}

}  // namespace ps_server
