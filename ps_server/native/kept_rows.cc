#include "kept_rows.h"

#include <algorithm>

namespace ps_server {

KeptRows::KeptRows(Arena* arena, const RowLayout& layout, int directory_top)
    : arena_(arena),
      num_floats_(layout.dim() + layout.num_state()),
      copies_(arena, layout),
      index_(arena, directory_top) {}

void KeptRows::Reserve(size_t end) { is_kept_.assign(end / 64 + 1, 0); }

bool KeptRows::Freeze(uint32_t end, const BucketRange& buckets) {
  if (end > is_kept_.size() * 64) return false;
  buckets_ = buckets;
  end_ = end;
  return true;
}

void KeptRows::Keep(uint64_t hash, uint32_t slot, RowRef row) {
  const uint32_t to = copies_.Next(/*may_reuse=*/false);
  const RowRef copy = copies_.At(to);
  std::copy_n(row.weights, num_floats_, copy.weights);
  *copy.meta = *row.meta;
  if (num_kept_ == kept_.size() * kKeptPerBlock) {
    kept_.reserve(kept_.size() + 1);
    kept_.push_back(static_cast<Kept*>(arena_->Allocate(Arena::kPage)));
  }
  kept_[num_kept_ / kKeptPerBlock][num_kept_ % kKeptPerBlock] = {hash, to};
  ++num_kept_;
  copies_.Add(to);
  is_kept_[slot / 64] |= uint64_t{1} << slot % 64;
}

bool KeptRows::IndexCopies(size_t max_copies) {
  for (; max_copies > 0 && num_indexed_ < num_kept_; --max_copies, ++num_indexed_) {
    const Kept& next = kept_[num_indexed_ / kKeptPerBlock][num_indexed_ % kKeptPerBlock];
    index_.Insert(next.hash, next.copy);
  }
  return num_indexed_ < num_kept_;
}

size_t KeptRows::OwnBytes() const {
  return is_kept_.capacity() * sizeof(is_kept_[0]) + kept_.capacity() * sizeof(kept_[0]) +
         index_.DirectoryBytes();
}

}  // namespace ps_server
