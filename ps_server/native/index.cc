#include "index.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "hash.h"

namespace ps_server {

const Index::Bucket Index::kNoEntries = {};

Index::Index(Arena* arena, int directory_top)
    : arena_(arena),
      depth_(0),
      shift_(directory_top),
      directory_mask_(0),
      bucket_mask_(0),
      directory_(1, &kNoEntries),
      segment_of_(1, 0) {}

void Index::Insert(uint64_t hash, uint32_t slot) {
  if (segments_.empty()) {
    segments_.push_back(NewSegment(kFirstBuckets, 0, hash));
    directory_[0] = segments_[0].buckets;
    bucket_mask_ = kFirstBuckets - 1;
  }
  Segment* segment = &segments_[segment_of_[DirectoryOf(hash)]];
  while (segment->size >= segment->limit) {
    Grow(hash);
    segment = &segments_[segment_of_[DirectoryOf(hash)]];
  }
  Place(segment, hash, slot);
}

size_t Index::DirectoryBytes() const {
  return directory_.capacity() * sizeof(directory_[0]) +
         segment_of_.capacity() * sizeof(segment_of_[0]) +
         segments_.capacity() * sizeof(segments_[0]);
}

Index::Segment Index::NewSegment(size_t num_buckets, int depth, uint64_t hash) {
  const size_t bytes = num_buckets * sizeof(Bucket);
  Bucket* const buckets = static_cast<Bucket*>(arena_->Allocate(bytes));  // zero: empty
  // Segments of one limit would all split in the same few batches. A limit of
  // 0.60 to 0.88, drawn from the key that made the segment, spreads the splits:
  // the worst batch of new keys is then 2 times the median, not 3 and more.
  const uint64_t draw = HashOfKey(hash) % 256;
  const size_t limit = num_buckets * kEntries * (154 + draw * 72 / 256) / 256;
  return {buckets, 0, static_cast<uint32_t>(limit), depth};
}

void Index::Grow(uint64_t hash) {
  if (bucket_mask_ + 1 < kSegmentBuckets) {
    DoubleSegment(hash);
  } else {
    SplitSegment(segment_of_[DirectoryOf(hash)], hash);
  }
}

void Index::DoubleSegment(uint64_t hash) {
  const size_t num_buckets = bucket_mask_ + 1;
  const Bucket* const old = segments_[0].buckets;
  segments_[0] = NewSegment(2 * num_buckets, 0, hash);
  bucket_mask_ = 2 * num_buckets - 1;
  directory_[0] = segments_[0].buckets;
  PlaceAll(old, num_buckets);
}

void Index::SplitSegment(uint32_t segment, uint64_t hash) {
  if (segments_[segment].depth == depth_) DoubleDirectory();
  const uint32_t upper = static_cast<uint32_t>(segments_.size());
  segments_.push_back(NewSegment(kSegmentBuckets, segments_[segment].depth + 1, hash));

  // Nothing below throws.
  Segment* const lower = &segments_[segment];
  const size_t span = directory_.size() >> lower->depth;  // a power of two of adjacent entries
  const size_t middle = (DirectoryOf(hash) & ~(span - 1)) + span / 2;
  std::fill_n(segment_of_.begin() + middle, span / 2, upper);
  std::fill_n(directory_.begin() + middle, span / 2, segments_[upper].buckets);

  Bucket old[kSegmentBuckets];
  TakeAll(segment, old);
  ++lower->depth;
  PlaceAll(old, kSegmentBuckets);
}

void Index::DoubleDirectory() {
  if (depth_ == kMaxDepth) {
    throw std::length_error(
        "a stripe's index is full: too many keys share the leading bits of their hash");
  }
  std::vector<const Bucket*> directory(2 * directory_.size());
  std::vector<uint32_t> segment_of(2 * directory_.size());
  for (size_t i = 0; i < directory.size(); ++i) {
    directory[i] = directory_[i / 2];
    segment_of[i] = segment_of_[i / 2];
  }
  directory_.swap(directory);
  segment_of_.swap(segment_of);
  ++depth_;
  --shift_;
  directory_mask_ = directory_.size() - 1;
}

void Index::TakeAll(size_t segment, Bucket* old) {
  const size_t bytes = (bucket_mask_ + 1) * sizeof(Bucket);
  std::memcpy(static_cast<void*>(old), segments_[segment].buckets, bytes);
  std::memset(static_cast<void*>(segments_[segment].buckets), 0, bytes);
  segments_[segment].size = 0;
}

void Index::Place(Segment* segment, uint64_t hash, uint32_t slot) {
  size_t b = hash & bucket_mask_;
  while (segment->buckets[b].size == kEntries) b = (b + 1) & bucket_mask_;
  Bucket& bucket = segment->buckets[b];
  bucket.low[bucket.size] = static_cast<uint32_t>(hash);
  bucket.high[bucket.size] = static_cast<uint32_t>(hash >> 32);
  bucket.slot[bucket.size] = slot;
  ++bucket.size;
  ++segment->size;
}

void Index::PlaceAll(const Bucket* buckets, size_t num_buckets) {
  for (const Bucket* bucket = buckets; bucket != buckets + num_buckets; ++bucket) {
    for (uint32_t i = 0; i < bucket->size; ++i) {
      const uint64_t hash = bucket->hash(i);
      Place(&segments_[segment_of_[DirectoryOf(hash)]], hash, bucket->slot[i]);
    }
  }
}

}  // namespace ps_server
