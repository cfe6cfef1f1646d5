#include "kept_rows.h"

#include <algorithm>

namespace ps_server {

KeptRows::KeptRows(Arena* arena, const RowLayout& layout, int directory_top)
    : num_floats_(layout.dim() + layout.num_state()),
      index_(arena, directory_top),
      copies_(arena, layout) {}

void KeptRows::Reserve(size_t end) { is_kept_.assign(end / 64 + 1, 0); }

bool KeptRows::Freeze(uint32_t end) {
  if (end > is_kept_.size() * 64) return false;
  end_ = end;
  return true;
}

void KeptRows::Keep(uint64_t hash, uint32_t slot, RowRef row) {
  const uint32_t to = copies_.Next(/*may_reuse=*/false);
  const RowRef copy = copies_.At(to);
  std::copy_n(row.weights, num_floats_, copy.weights);
  *copy.meta = *row.meta;
  index_.Insert(hash, to);
  copies_.Add(to);
  is_kept_[slot / 64] |= uint64_t{1} << slot % 64;
}

size_t KeptRows::OwnBytes() const {
  return is_kept_.capacity() * sizeof(is_kept_[0]) + index_.DirectoryBytes();
}

}  // namespace ps_server
