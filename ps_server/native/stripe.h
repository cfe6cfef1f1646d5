// The part of a table under one lock: an index, and the rows that it names.
//
// Owns the index and the list of rows, and a share of the arena of their blocks.
// Thread-safe: each batch call takes the stripe's lock once and holds it for its
// whole part of the batch. No method takes another lock but an arena's.
//
// It may be frozen, also more than once at a time: a row that changes is copied first, by
// its first change for each frozen state. A Clear leaves index and list to the frozen states.
//
// Invariants:
//   1. Each row of the list is named by one entry of the index.
//   2. A row never moves. It leaves by DropBuckets or Clear, which end the generation.
//   3. A call that throws (out of memory) has changed whole rows, those of the
//      first groups of its items, and may have made some more.
//   4. While a stripe is frozen, a slot that is freed is not used again.

#ifndef PS_SERVER_NATIVE_STRIPE_H_
#define PS_SERVER_NATIVE_STRIPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "bucket_range.h"
#include "index.h"
#include "initializer.h"
#include "kept_rows.h"
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
  struct Content;

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

  // The rows at one moment. REQUIRES: goes before its stripe and its arena do.
  class Frozen {
   public:
    ~Frozen();
    Frozen(const Frozen&) = delete;
    Frozen& operator=(const Frozen&) = delete;

    size_t num_rows() const { return num_rows_; }

   private:
    friend class Stripe;

    Frozen(Stripe* stripe, Arena* copies);

    Stripe* const stripe_;
    KeptRows kept_;                           // guarded by the stripe's lock
    std::shared_ptr<const Content> content_;  // where a row is that was not kept
    size_t num_rows_ = 0;
  };

  // Freezes the rows of some buckets as they are. Copies go to `copies`. Holds the lock for a
  // moment that does not depend on how many rows there are.
  std::unique_ptr<Frozen> Freeze(Arena* copies, const BucketRange& buckets);

  // Lets go the frozen rows of all other buckets than these.
  void Narrow(Frozen* frozen, const BucketRange& buckets);

  // Indexes up to `max_copies` of the rows that were copied since the last call; returns
  // whether there are more.
  bool IndexCopies(Frozen* frozen, size_t max_copies);

  // Appends the hashes of the keys of frozen rows of some buckets that the index or, with
  // `is_kept`, that of the copies has in its segment of this number; returns whether there is
  // one of a higher number. The segments of the index in their order, then those of the
  // copies, when all that were made before have been indexed, are all rows, each at least
  // once, in no order.
  bool List(const Frozen& frozen, bool is_kept, size_t segment, const BucketRange& buckets,
            std::vector<uint64_t>* hashes) const;

  // Copies the frozen row of each item, all of which were listed, to out[item.position].
  // Indexes all copies: a matter of those since the last IndexCopies.
  void Export(Frozen* frozen, Items items, const RowColumns& out);

  // Removes the rows of some buckets that the index has in its segment of this number,
  // and leaves their memory to new ones; returns whether there is a segment of a higher number.
  bool Drop(size_t segment, const BucketRange& buckets);

  size_t num_rows() const;

  // The size of the index's directory, in bytes: all that is not the arena's.
  size_t DirectoryBytes() const;

  // Bytes that a frozen state has beside its arena's.
  size_t OwnBytes(const Frozen& frozen) const;

  // Drops all rows. New ones go to `arena`, and the share of the old is given up.
  void Clear(std::shared_ptr<Arena> arena);

 private:
  // The rows and where they are, between two Clears.
  struct Content {
    Content(std::shared_ptr<Arena> arena, const RowLayout& layout, int directory_top);

    const std::shared_ptr<Arena> arena;
    Index index;
    RowList rows;
    size_t num_rows = 0;
  };

  // A row and its slot; of none, null and kMissing.
  struct Found {
    uint32_t slot;
    RowRef row;
  };

  // The index is loaded, and a row looked up and loaded, this many items before
  // the row is used: enough to hide the memory's latency, few enough for what is
  // on its way to stay in the L1 cache.
  static constexpr size_t kIndexAhead = 32;
  static constexpr size_t kRowAhead = 16;

  // For the row of each item, in order: calls ahead(hash), which starts to load what
  // find(i), which returns a Found, reads; load(item, found), if it is not missing; and
  // use(item, found). They are kIndexAhead - kRowAhead and kRowAhead items apart.
  // REQUIRES: the lock.
  template <typename Ahead, typename Find, typename Load, typename Use>
  static void ForEachRow(Items items, const Ahead& ahead, const Find& find, const Load& load,
                         const Use& use);

  void Release(const Frozen* frozen);

  // REQUIRES, all: the lock. Insert: the hash is missing. WillChange is called before a
  // row changes or goes, PrefetchKept, if it is called, some time before that.
  uint32_t FindOrInsert(uint64_t hash);
  uint32_t Insert(uint64_t hash);
  Found At(uint32_t slot) const;
  void PrefetchKept(uint32_t slot) const;
  void WillChange(uint64_t hash, const Found& found);

  const RowRules* const rules_;
  const int directory_top_;

  mutable std::mutex mutex_;
  std::shared_ptr<Content> content_;  // guarded by mutex_
  std::vector<Frozen*> frozen_;       // guarded by mutex_; those that content_ is the content of
  uint64_t generation_ = 0;           // guarded by mutex_; counts what took rows away
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_STRIPE_H_
