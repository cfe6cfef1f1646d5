#include "reuse_blocks.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "block_pool.h"
#include "import_table.h"

namespace ps_server {
namespace {

// Never ends: what a library holds in static variables is freed after ours are gone.
BlockPool* pool = nullptr;

// Bytes. Blocks of all classes, some of them without pages, have room in twice as many addresses.
size_t MemoryOfThisMachine() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

int TakeBlock(void** out, size_t alignment, size_t size) noexcept {
  void* const block = alignment <= BlockPool::kPage ? pool->Allocate(size) : nullptr;
  if (block == nullptr) return posix_memalign(out, alignment, size);
  *out = block;
  return 0;
}

void FreeBlock(void* block) noexcept {
  if (pool->Owns(block)) {
    pool->Free(block);
  } else {
    std::free(block);
  }
}

}  // namespace

size_t ReuseBlocks(const std::string& folder) {
  if (pool == nullptr) {
    try {
      pool = new BlockPool(2 * MemoryOfThisMachine());
    } catch (const std::bad_alloc&) {
      return 0;  // no such range of addresses is allowed here
    }
    pthread_atfork([] { pool->Lock(); }, [] { pool->Unlock(); }, [] { pool->Unlock(); });
  }
  // In this order: no library may get a block that it, or another, cannot free.
  ReplaceImport(folder, "free", reinterpret_cast<void*>(&FreeBlock));
  return ReplaceImport(folder, "posix_memalign", reinterpret_cast<void*>(&TakeBlock));
}

size_t BytesOfReusedBlocks() { return pool == nullptr ? 0 : pool->BytesKept(); }

}  // namespace ps_server
