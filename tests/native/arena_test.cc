#include "arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

struct Block {
  char* start;
  size_t size;
};

Block Allocate(Arena* arena, size_t size) {
  return {static_cast<char*>(arena->Allocate(size)), size};
}

void CheckDisjoint(std::vector<Block> blocks) {
  const auto is_empty = [](const Block& block) { return block.size == 0; };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), is_empty), blocks.end());
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.start < b.start; });
  for (size_t i = 1; i < blocks.size(); ++i) {
    CHECK(blocks[i - 1].start + blocks[i - 1].size <= blocks[i].start);
  }
}

TEST(BlocksOfAnySizeAreAlignedDisjointAndKeepWhatIsWritten) {
  Arena arena;
  std::vector<Block> blocks;
  size_t total = 0;
  for (int round = 0; round < 3; ++round) {
    for (size_t size : {1, 3, 63, 64, 65, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20,
                        (1 << 21) - 1, 1 << 21, (1 << 21) + 1}) {
      blocks.push_back(Allocate(&arena, size));
      const size_t alignment = size < Arena::kPage ? Arena::kAlignment : Arena::kPage;
      CHECK_EQ(reinterpret_cast<uintptr_t>(blocks.back().start) % alignment, 0u);
      CHECK(std::all_of(blocks.back().start, blocks.back().start + size,
                        [](char byte) { return byte == 0; }));
      std::memset(blocks.back().start, static_cast<int>(blocks.size()), size);
      total += (size + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
    }
  }
  CheckDisjoint(blocks);
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t at = 0; at < blocks[i].size; at += 61) {
      CHECK_EQ(int{blocks[i].start[at]}, static_cast<int>(i + 1));
    }
  }
  CHECK(arena.BytesAllocated() >= total);
}

// The first chunks of the largest size come one by one, each mapped ahead of its use.
TEST(ArenaThatOutgrowsItsLargestChunkGoesOn) {
  Arena arena;
  std::vector<Block> blocks;
  for (int i = 0; i < 24; ++i) {
    blocks.push_back(Allocate(&arena, (8 << 20) - 64));
    blocks.back().start[0] = blocks.back().start[blocks.back().size - 1] = 1;
  }
  CheckDisjoint(blocks);
}

TEST(BlockOfNoBytesIsAlignedAndTakesNone) {
  Arena arena;
  CHECK_EQ(arena.BytesAllocated(), 0u);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(arena.Allocate(0)) % Arena::kAlignment, 0u);
    CHECK_EQ(arena.BytesAllocated(), 0u);
  }
}

TEST(BlockLargerThanAnyChunkIsWhole) {
  Arena arena;
  const size_t size = (size_t{1} << 26) + 12345;
  const Block before = Allocate(&arena, 100), block = Allocate(&arena, size);
  CheckDisjoint({before, block, Allocate(&arena, 100)});
  for (size_t at = 0; at < size; at += size / 50) block.start[at] = 1;
  block.start[size - 1] = 1;
}

TEST(BlockThatNoMemoryHoldsThrowsAndTheArenaGoesOn) {
  Arena arena;
  const Block before = Allocate(&arena, 1000);
  const size_t bytes = arena.BytesAllocated();
  CHECK_THROWS(std::bad_alloc, arena.Allocate(size_t{1} << 62));
  CHECK_EQ(arena.BytesAllocated(), bytes);
  const Block after = Allocate(&arena, 1000);
  std::memset(after.start, 1, after.size);
  CheckDisjoint({before, after});
}

TEST(ThreadsGetBlocksOfTheirOwn) {
  Arena arena;
  std::vector<std::vector<Block>> blocks(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < blocks.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < 500; ++i) {
        blocks[thread].push_back(Allocate(&arena, 64 * (i % 90)));
        std::memset(blocks[thread].back().start, static_cast<int>(thread), 64 * (i % 90));
        CHECK(arena.BytesAllocated() >= 64 * (i % 90));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Block> all;
  for (size_t thread = 0; thread < blocks.size(); ++thread) {
    for (const Block& block : blocks[thread]) {
      for (size_t at = 0; at < block.size; at += 64) {
        CHECK_EQ(size_t(block.start[at]), thread);
      }
      all.push_back(block);
    }
  }
  CheckDisjoint(std::move(all));
}

}  // namespace
}  // namespace ps_server
