#include "block_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

constexpr size_t kAddresses = size_t{1} << 34;

TEST(AClassHasRoomForItsSizesAndAnEighthMoreAtMost) {
  size_t last = 0;
  for (size_t size = BlockPool::kSmallest; size <= BlockPool::kLargest; size += size / 37 + 1) {
    const size_t room = BlockPool::SizeOf(BlockPool::ClassOf(size));
    CHECK(room >= size);
    CHECK(room <= size + size / 8 + BlockPool::kPage);
    CHECK_EQ(room % BlockPool::kPage, 0u);
    CHECK(room >= last);
    last = room;
    CHECK_EQ(BlockPool::ClassOf(room), BlockPool::ClassOf(size));
  }
}

TEST(AFreedBlockIsTheNextOfItsClassAsItWas) {
  BlockPool pool(kAddresses);
  void* const block = pool.Allocate(100000);
  std::memset(block, 7, 100000);
  pool.Free(block);
  CHECK_EQ(pool.Allocate(101000), block);
  CHECK_EQ(static_cast<char*>(block)[99999], 7);
  CHECK(pool.Allocate(101000) != block);
}

TEST(BlocksOutsideItsSizesAreNotThePools) {
  BlockPool pool(kAddresses);
  CHECK(pool.Allocate(BlockPool::kSmallest - 1) == nullptr);
  CHECK(pool.Allocate(BlockPool::kLargest + 1) == nullptr);
  CHECK(pool.Allocate(SIZE_MAX) == nullptr);
  int elsewhere = 0;
  CHECK(!pool.Owns(&elsewhere));
  CHECK(!pool.Owns(nullptr));
  CHECK_EQ(pool.BytesKept(), 0u);
}

TEST(ARangeThatIsFullGivesNull) {
  BlockPool pool(3 << 20);
  void* const first = pool.Allocate(2 << 20);
  CHECK(first != nullptr);
  CHECK(pool.Allocate(2 << 20) == nullptr);
  CHECK(pool.Allocate(1 << 20) != nullptr);
  pool.Free(first);
  CHECK_EQ(pool.Allocate(2 << 20), first);
}

// Against a map of what each block was filled with.
TEST(BlocksOfAnyOrderAreDisjointAndKeepWhatIsWritten) {
  BlockPool pool(kAddresses);
  std::map<char*, size_t> used;
  std::mt19937_64 random(0);
  size_t most = 0, in_use = 0;
  for (int i = 0; i < 3000; ++i) {
    if (used.empty() || random() % 5 < 3) {
      const size_t size = BlockPool::kSmallest + random() % (1 << (15 + random() % 6));
      char* const block = static_cast<char*>(pool.Allocate(size));
      CHECK(pool.Owns(block) && pool.Owns(block + size - 1));
      CHECK_EQ(reinterpret_cast<uintptr_t>(block) % BlockPool::kPage, 0u);
      const auto after = used.lower_bound(block);
      CHECK(after == used.end() || block + size <= after->first);
      CHECK(after == used.begin() || std::prev(after)->first + std::prev(after)->second <= block);
      std::memset(block, static_cast<int>(size % 251), size);
      used[block] = size;
      in_use += BlockPool::SizeOf(BlockPool::ClassOf(size));
    } else {
      auto which = used.begin();
      std::advance(which, random() % used.size());
      const auto [block, size] = *which;
      const char filled = static_cast<char>(size % 251);
      CHECK(std::all_of(block, block + size, [&](char byte) { return byte == filled; }));
      pool.Free(block);
      in_use -= BlockPool::SizeOf(BlockPool::ClassOf(size));
      used.erase(which);
    }
    most = std::max(most, in_use);
    CHECK_EQ(pool.BytesUsed(), in_use);
    CHECK(pool.BytesKept() <= std::max(BlockPool::kMostKept * most, BlockPool::kLeastKept));
  }
}

TEST(PagesThatOutweighThoseInUseGoBack) {
  BlockPool pool(kAddresses);
  const size_t megabyte = 1 << 20;
  for (size_t size = 20 * megabyte; size <= 60 * megabyte; size += 10 * megabyte) {
    char* const block = static_cast<char*>(pool.Allocate(size));
    std::memset(block, 1, size);
    pool.Free(block);
    CHECK(pool.BytesKept() <=
          std::max(2 * BlockPool::SizeOf(BlockPool::ClassOf(size)), BlockPool::kLeastKept));
  }
  // The largest ones go first. What went back is usable, and zero.
  char* const block = static_cast<char*>(pool.Allocate(50 * megabyte));
  CHECK_EQ(static_cast<int>(block[0]), 0);
  block[0] = 1;
}

TEST(ThreadsFreeOneAnothersBlocks) {
  BlockPool pool(kAddresses);
  constexpr int kThreads = 4, kRounds = 500;
  std::vector<std::atomic<char*>> handed(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const size_t size = BlockPool::kSmallest * (1 + i % 3);
        char* const block = static_cast<char*>(pool.Allocate(size));
        block[0] = block[size - 1] = static_cast<char>(t);
        char* const other = handed[(t + 1) % kThreads].exchange(block);
        if (other != nullptr) {
          CHECK_EQ(static_cast<int>(other[0]), t);
          pool.Free(other);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& block : handed) {
    if (block != nullptr) pool.Free(block);
  }
  CHECK_EQ(pool.BytesUsed(), 0u);
}

}  // namespace
}  // namespace ps_server
