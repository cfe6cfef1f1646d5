#include "index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena.h"
#include "check.h"

namespace ps_server {
namespace {

constexpr int kTop = 46;  // as in a table of 64 stripes
constexpr uint64_t kDirectoryMask = (uint64_t{1} << kTop) - 1;

// More than any segment holds.
constexpr size_t kSegmentEntries = 512 * 5;

// An index beside a map, and what must hold of it.
class Checked {
 public:
  void Insert(uint64_t hash) {
    const uint32_t slot = next_slot_ += 3;
    CHECK_EQ(index_.Find(hash), Index::kMissing);
    index_.Insert(hash, slot);
    map_[hash] = slot;
    CHECK_EQ(index_.Find(hash), slot);
    if (map_.size() < 200 || index_.num_segments() != num_segments_) Check();
    num_segments_ = index_.num_segments();
  }

  // Erases the entries whose hash is odd, or even, a segment at a time.
  void EraseHalf(uint64_t bit) {
    for (size_t segment = 0; segment < index_.num_segments(); ++segment) {
      index_.EraseIf(segment, [&](uint64_t hash, uint32_t slot) {
        CHECK_EQ(map_.at(hash), slot);
        if (hash % 2 != bit) return false;
        map_.erase(hash);
        return true;
      });
    }
    Check();
  }

  // Every entry is found and listed once, in one segment; the segments split the
  // directory's range into aligned powers of two; what is not there is missing.
  void Check() const {
    std::map<uint64_t, size_t> segment_of_place;
    size_t num_listed = 0;
    for (size_t segment = 0; segment < index_.num_segments(); ++segment) {
      size_t num_entries = 0;
      index_.ForEach(segment, [&](uint64_t hash, uint32_t slot) {
        const auto found = map_.find(hash);
        CHECK(found != map_.end());
        CHECK_EQ(found->second, slot);
        segment_of_place[hash & kDirectoryMask] = segment;
        ++num_entries;
      });
      CHECK(num_entries < kSegmentEntries);
      num_listed += num_entries;
    }
    CHECK_EQ(num_listed, map_.size());
    for (const auto& [hash, slot] : map_) {
      CHECK_EQ(index_.Find(hash), slot);
      for (uint64_t other : {hash ^ 1, hash ^ 512, hash ^ (uint64_t{1} << 45), ~hash}) {
        if (map_.count(other) == 0) CHECK_EQ(index_.Find(other), Index::kMissing);
      }
    }
    // In the order of the directory a segment's entries are adjacent.
    std::set<size_t> is_done;
    size_t before = SIZE_MAX;
    for (const auto& [place, segment] : segment_of_place) {
      if (segment == before) continue;
      CHECK(is_done.insert(segment).second);
      before = segment;
    }
    // And no two of them share the aligned range that its own entries span.
    std::map<size_t, std::pair<uint64_t, uint64_t>> ends;
    for (const auto& [place, segment] : segment_of_place) {
      ends.try_emplace(segment, place, place);
      ends[segment].second = place;
    }
    uint64_t end_before = 0;
    for (const auto& [first_place, segment] : segment_of_place) {
      if (ends[segment].first != first_place) continue;
      uint64_t span = 1;
      while (ends[segment].first / span != ends[segment].second / span) span *= 2;
      CHECK(ends[segment].first / span * span >= end_before);
      end_before = (ends[segment].first / span + 1) * span;
    }
  }

  Index& index() { return index_; }
  size_t size() const { return map_.size(); }

 private:
  Arena arena_;
  Index index_{&arena_, kTop};
  std::unordered_map<uint64_t, uint32_t> map_;
  size_t num_segments_ = 0;
  uint32_t next_slot_ = 0;
};

TEST(EmptyIndexFindsNothing) {
  Arena arena;
  Index index(&arena, kTop);
  for (uint64_t hash : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    index.Prefetch(hash);
    CHECK_EQ(index.Find(hash), Index::kMissing);
  }
  for (size_t i = 0; i < index.num_segments(); ++i) {
    index.ForEach(i, [](uint64_t, uint32_t) { CHECK(false); });
  }
  CHECK_EQ(arena.BytesAllocated(), 0u);
}

TEST(HashesOfZerosAndOnesAreEntriesLikeAnyOther) {
  Checked checked;
  for (uint64_t hash : {uint64_t{0}, UINT64_MAX, uint64_t{1}, uint64_t{1} << 63}) {
    checked.Insert(hash);
  }
  Arena arena;
  Index index(&arena, kTop);
  index.Insert(0, 0);
  index.Insert(5, Index::kMissing - 1);
  CHECK_EQ(index.Find(0), 0u);
  CHECK_EQ(index.Find(5), Index::kMissing - 1);
}

TEST(IndexOfRandomHashesHoldsItsInvariantsThroughSplits) {
  Checked checked;
  std::mt19937_64 random(5);
  for (int i = 0; i < 40'000; ++i) checked.Insert(random());
  checked.Check();
  CHECK(checked.index().num_segments() >= 40'000 / kSegmentEntries);
  CHECK(checked.index().DirectoryBytes() < 10'000);
}

TEST(HashesOfOneHomeBucketAreProbedFor) {
  for (uint64_t home : {0, 511}) {  // the second goes round the end of its segment
    Checked checked;
    std::mt19937_64 random(6);
    for (int i = 0; i < 6'000; ++i) checked.Insert((random() & ~uint64_t{511}) | home);
    checked.Check();
  }
}

// Hashes whose first `num_shared` bits of the directory's are those of `head`.
uint64_t SharedHash(uint64_t head, int num_shared, uint64_t rest) {
  const int free = kTop - num_shared;
  return (head << free & kDirectoryMask) | (rest & ((uint64_t{1} << free) - 1));
}

TEST(HashesOfSharedLeadingBitsDoubleTheDirectoryUntilTheyPart) {
  for (int num_shared : {1, 4, 11}) {
    Checked checked;
    std::mt19937_64 random(7);
    const uint64_t ones = (uint64_t{1} << num_shared) - 1;
    for (uint64_t head : {uint64_t{0}, ones, ones >> 1}) {
      for (int i = 0; i < 3'000; ++i) checked.Insert(SharedHash(head, num_shared, random()));
    }
    for (int i = 0; i < 1'000; ++i) checked.Insert(random());
    checked.Check();
  }
}

TEST(HashesThatNeverPartAreRefusedAndNothingHasChanged) {
  Checked checked;
  std::mt19937_64 random(8);
  for (int i = 0; i < 1'000; ++i) checked.Insert(SharedHash(1, 1, random()));
  size_t num_inserted = 0;
  uint64_t refused = 0;
  bool is_refused = false;
  for (uint64_t rest = 0; !is_refused; ++rest, ++num_inserted) {
    CHECK(num_inserted < kSegmentEntries);
    try {
      checked.Insert(SharedHash(0, 30, rest));
    } catch (const std::length_error&) {
      refused = SharedHash(0, 30, rest);
      is_refused = true;
    }
  }
  CHECK(num_inserted > kSegmentEntries / 2);
  CHECK_EQ(checked.index().Find(refused), Index::kMissing);
  checked.Check();
  CHECK_THROWS(std::length_error, checked.index().Insert(refused, 0));
  for (int i = 0; i < 3'000; ++i) checked.Insert(SharedHash(1, 1, random()));  // others go on
  checked.Check();
}

TEST(ReadingSegmentsInOrderMeetsWhatWasThereHoweverTheySplitMeanwhile) {
  Arena arena;
  Index index(&arena, kTop);
  std::mt19937_64 random(9);
  std::set<uint64_t> unmet;
  uint32_t slot = 0;
  while (slot < 9'000) {
    const uint64_t hash = random();
    unmet.insert(hash);
    index.Insert(hash, slot++);
  }
  const size_t num_segments = index.num_segments();
  for (size_t segment = 0; segment < index.num_segments(); ++segment) {
    index.ForEach(segment, [&](uint64_t hash, uint32_t) { unmet.erase(hash); });
    for (int i = 0; i < 2'000 && index.num_segments() < 8 * num_segments; ++i) {
      index.Insert(random(), slot++);
    }
  }
  CHECK(index.num_segments() > num_segments);
  CHECK(unmet.empty());
}

TEST(EntriesMoveOnlyToSegmentsOfHigherNumbers) {
  Arena arena;
  Index index(&arena, kTop);
  std::mt19937_64 random(10);
  std::unordered_map<uint64_t, size_t> segment_of;
  uint32_t slot = 0;
  while (index.num_segments() < 12) {
    index.Insert(random(), slot++);
    if (slot % 500 != 0) continue;
    for (size_t segment = 0; segment < index.num_segments(); ++segment) {
      index.ForEach(segment, [&](uint64_t hash, uint32_t) {
        const auto [at, is_new] = segment_of.try_emplace(hash, segment);
        CHECK(is_new || at->second <= segment);
        at->second = segment;
      });
    }
  }
}

TEST(WhatIsErasedIsMissingAndWhatStaysIsFound) {
  for (uint64_t shared : {uint64_t{0}, uint64_t{504}}) {  // the second: few homes, long probes
    for (int size : {3, 60, 1'000, 20'000}) {
      Checked checked;
      std::mt19937_64 random(static_cast<uint64_t>(size));
      const auto insert = [&](int n) {
        for (int i = 0; i < n; ++i) checked.Insert(random() | shared);
      };
      insert(size);
      for (int round = 0; round < 3; ++round) {
        checked.EraseHalf(round % 2);
        insert(size / 2);
      }
      checked.EraseHalf(0);
      checked.EraseHalf(1);
      CHECK_EQ(checked.size(), 0u);
      insert(size);
      checked.Check();
    }
  }
}

TEST(AssignedIndexIsANewOne) {
  Checked checked;
  for (uint64_t hash = 0; hash < 5'000; ++hash) checked.Insert(hash << 30);
  Arena arena;
  checked.index() = Index(&arena, kTop);
  CHECK_EQ(checked.index().Find(0), Index::kMissing);
  checked.index().Insert(0, 9);
  CHECK_EQ(checked.index().Find(0), 9u);
}

}  // namespace
}  // namespace ps_server
