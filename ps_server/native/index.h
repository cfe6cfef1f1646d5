// The index of a stripe: hash of a key -> slot of its row.
//
// Extendible hashing over segments of 64-byte buckets. A directory of 2^depth
// pointers is indexed by the hash bits below the stripe's; a full segment
// splits in two, and no insertion ever moves more than one segment. Inside a
// segment a hash goes to its home bucket or, if that is full, to the next.
//
//   directory (depth 2)       home = hash & bucket_mask_
//     00 --+--> A  depth 1     +------------------+
//     01 --+                   | 5 low halves     |  bucket 0, one cache line: the halves
//     10 -----> B  depth 2     | size             |  of 5 hashes, and their slots
//     11 -----> C  depth 2     | 5 high halves    |
//                              | 5 slots          |
//                              +------------------+
//                              | ...              |
//
// Owns no memory but the directory: segments are blocks of the arena, which
// outlives the index. Not thread-safe; its stripe's lock guards it.
//
// Invariants:
//   1. The entries of a bucket fill it from the front, and one that is not full
//      ends a probe: a removal places all that stay in its segment anew.
//   2. A segment is never full (size <= limit < capacity): every probe ends.
//   3. All segments have bucket_mask_ + 1 buckets, a power of two, which is
//      below kSegmentBuckets only while there is one segment.
//   4. A segment of depth d fills 2^(depth_ - d) adjacent directory entries.
//   5. directory_[i] is the buckets of segments_[segment_of_[i]].

#ifndef PS_SERVER_NATIVE_INDEX_H_
#define PS_SERVER_NATIVE_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "arena.h"
#include "prefetch.h"

namespace ps_server {

class Index {
 public:
  static constexpr uint32_t kMissing = UINT32_MAX;

  // The directory uses the hash bits below `directory_top`.
  Index(Arena* arena, int directory_top);

  // Starts to load the bucket that Find will read first.
  void Prefetch(uint64_t hash) const {
    ps_server::Prefetch(directory_[DirectoryOf(hash)] + (hash & bucket_mask_));
  }

  // Returns the slot of `hash`, or kMissing.
  uint32_t Find(uint64_t hash) const {
    const Bucket* const segment = directory_[DirectoryOf(hash)];
    const uint32_t high = static_cast<uint32_t>(hash >> 32);
    for (size_t b = hash & bucket_mask_;; b = (b + 1) & bucket_mask_) {
      const Bucket& bucket = segment[b];
      uint32_t found = bucket.MatchLow(static_cast<uint32_t>(hash)) & ((1u << bucket.size) - 1);
      for (; found != 0; found &= found - 1) {  // nearly always once
        const int i = __builtin_ctz(found);
        if (bucket.high[i] == high) return bucket.slot[i];
      }
      if (bucket.size < kEntries) return kMissing;
    }
  }

  // Adds an entry. REQUIRES: Find(hash) == kMissing.
  // Throws std::bad_alloc or std::length_error, and then nothing has changed.
  void Insert(uint64_t hash, uint32_t slot);

  // Removes the entries of a segment for which is_gone(hash, slot), asked once of each.
  template <typename IsGone>
  void EraseIf(size_t segment, IsGone&& is_gone) {
    Bucket old[kSegmentBuckets];
    TakeAll(segment, old);
    for (size_t b = 0; b <= bucket_mask_; ++b) {
      for (uint32_t i = 0; i < old[b].size; ++i) {
        const uint64_t hash = old[b].hash(i);
        if (!is_gone(hash, old[b].slot[i])) Place(&segments_[segment], hash, old[b].slot[i]);
      }
    }
  }

  // Segments are numbered from 0. A split moves entries to a segment of a
  // higher number, so that who reads all of them in order, with insertions in
  // between, meets each entry that was there at the start (some twice).
  size_t num_segments() const { return segments_.size(); }

  // Calls visit(hash, slot) for each entry of a segment.
  template <typename Visit>
  void ForEach(size_t segment, Visit&& visit) const {
    const Bucket* const buckets = segments_[segment].buckets;
    for (size_t b = 0; b <= bucket_mask_; ++b) {
      for (uint32_t i = 0; i < buckets[b].size; ++i) visit(buckets[b].hash(i), buckets[b].slot[i]);
    }
  }

  // The size of the directory, in bytes.
  size_t DirectoryBytes() const;

 private:
  static constexpr uint32_t kEntries = 5;
  static constexpr size_t kFirstBuckets = 4;
  static constexpr size_t kSegmentBuckets = 512;  // 32 KB
  // Reached by chosen keys alone: 2^20 segments of random ones are 2 billion rows.
  static constexpr int kMaxDepth = 20;

  struct alignas(64) Bucket {
    uint32_t low[kEntries];
    uint32_t size;
    uint32_t high[kEntries];
    uint32_t slot[kEntries];

    uint64_t hash(uint32_t i) const { return uint64_t{high[i]} << 32 | low[i]; }

    // Returns the entries, as bits, whose low half is `wanted`, and maybe some of those
    // that are not there. Without a branch an entry: which one it is cannot be predicted.
    uint32_t MatchLow(uint32_t wanted) const {
#ifdef __SSE2__
      const __m128i all = _mm_set1_epi32(static_cast<int>(wanted));
      const auto match = [&](const uint32_t* four) {
        const __m128i lanes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(four));
        return static_cast<uint32_t>(
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(lanes, all))));
      };
      return match(low) | (match(low + 1) & 8) << 1;
#else
      uint32_t found = 0;
      for (uint32_t i = 0; i < kEntries; ++i) found |= uint32_t{low[i] == wanted} << i;
      return found;
#endif
    }
  };
  static_assert(sizeof(Bucket) == 64);

  struct Segment {
    Bucket* buckets;
    uint32_t size;   // entries
    uint32_t limit;  // size at which it splits
    int depth;
  };

  // What the directory of an empty index points at; never written.
  static const Bucket kNoEntries;

  size_t DirectoryOf(uint64_t hash) const { return (hash >> shift_) & directory_mask_; }

  Segment NewSegment(size_t num_buckets, int depth, uint64_t hash);
  void Grow(uint64_t hash);
  void DoubleSegment(uint64_t hash);
  void SplitSegment(uint32_t segment, uint64_t hash);
  void DoubleDirectory();
  // Copies the buckets of a segment to `old` and leaves it empty.
  void TakeAll(size_t segment, Bucket* old);
  // Adds an entry where there is room, whatever the limit.
  void Place(Segment* segment, uint64_t hash, uint32_t slot);
  // Places the entries of `buckets`, each in the segment that the directory names.
  void PlaceAll(const Bucket* buckets, size_t num_buckets);

  Arena* arena_;
  int depth_;
  int shift_;              // directory_top - depth_
  size_t directory_mask_;  // 2^depth_ - 1
  size_t bucket_mask_;
  std::vector<const Bucket*> directory_;
  std::vector<uint32_t> segment_of_;
  std::vector<Segment> segments_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_INDEX_H_
