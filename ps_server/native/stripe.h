// The part of a table under one lock: an index, and the rows that it names.
//
// Owns the index and the list of rows, and a share of the arena of their blocks.
// Thread-safe: each batch call takes the stripe's lock once and holds it for its
// whole part of the batch. No method takes another lock but the arena's.
//
// Invariants:
//   1. Each row of the list is named by one entry of the index.
//   2. A row, once there, never moves and never leaves, until Clear.
//   3. A call that throws (out of memory) has changed whole rows, those of the
//      first groups of its items, and may have made some more.

#ifndef PS_SERVER_NATIVE_STRIPE_H_
#define PS_SERVER_NATIVE_STRIPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "index.h"
#include "initializer.h"
#include "merge.h"
#include "optimizer.h"
#include "partition.h"
#include "row.h"
#include "row_list.h"

namespace ps_server {

// What all rows of a table have in common. Immutable.
struct RowRules {
  RowLayout layout;
  Optimizer optimizer;
  Initializer initializer;
};

class Stripe {
 public:
  // The directory of the index uses the hash bits below `directory_top`.
  // REQUIRES: `rules` outlives the stripe.
  Stripe(const RowRules* rules, std::shared_ptr<Arena> arena, int directory_top);

  // Copies the weights of items to out[item.position] [dim]; of a missing key,
  // those that its row would start with. With `insert`, the row is made. Writes the
  // slot of each item's row, Index::kMissing if it has none, and returns the
  // generation in which these hold.
  uint64_t Pull(Items items, bool insert, float* out, uint32_t* slots);

  // The slots of rows that a pull of the same items has found.
  struct Slots {
    const uint32_t* of_items;  // null: not known
    uint64_t generation;
  };

  // Applies the gradients, one a row, making the rows that are missing. Slots of
  // another generation are not used. REQUIRES: known slots are aligned with the
  // merge's items, and none is missing.
  void Push(const Merge& merge, const Optimizer::Update& update, uint32_t step, Slots known);

  // Makes or overwrites the row of each item from rows[item.position]; of equal
  // keys, the last one stays.
  void Import(Items items, const ConstRowColumns& rows);

  // Appends the keys of the rows of buckets [first_bucket, end_bucket), each key
  // that was there at the start at least once, in no order. Returns the generation
  // of the rows. Holds the lock for one segment of the index at a time.
  uint64_t List(uint32_t first_bucket, uint32_t end_bucket, std::vector<uint64_t>* keys) const;

  // Copies the row of each item, all of which were listed, to out[item.position].
  // Holds the lock for a few rows at a time, so each row is whole, but rows are
  // of different moments while pushes go on. Throws std::runtime_error if the
  // stripe was cleared since `generation`.
  void Export(Items items, uint64_t generation, const RowColumns& out) const;

  size_t num_rows() const;

  // The size of the index's directory, in bytes: all that is not the arena's.
  size_t DirectoryBytes() const;

  // Drops all rows. New ones go to `arena`, and the share of the old is given up.
  void Clear(std::shared_ptr<Arena> arena);

 private:
  // The index is loaded, and a row looked up and loaded, this many items before
  // the row is used: enough to hide the memory's latency, few enough for what is
  // on its way to stay in the L1 cache.
  static constexpr size_t kIndexAhead = 32;
  static constexpr size_t kRowAhead = 16;

  // For the row of each item, in order: calls ahead(hash), which starts to load what
  // find(i) reads; its slot is find(i); load(item, row); and use(item, row). They are
  // kIndexAhead - kRowAhead and kRowAhead items apart. The row of kMissing is null, and
  // is not loaded. REQUIRES: the lock.
  template <typename Ahead, typename Find, typename Load, typename Use>
  void ForEachRow(Items items, const Ahead& ahead, const Find& find, const Load& load,
                  const Use& use) const;

  // REQUIRES, both: the lock. Insert: the hash is missing.
  uint32_t FindOrInsert(uint64_t hash);
  uint32_t Insert(uint64_t hash);

  const RowRules* const rules_;
  const int directory_top_;

  mutable std::mutex mutex_;
  std::shared_ptr<Arena> arena_;  // guarded by mutex_
  Index index_;                   // guarded by mutex_
  RowList rows_;                  // guarded by mutex_
  uint32_t num_rows_ = 0;         // guarded by mutex_
  uint64_t generation_ = 0;       // guarded by mutex_; counts Clear
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_STRIPE_H_
