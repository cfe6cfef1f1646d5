// Has libraries take their large blocks from a pool that keeps them by size.

#ifndef PS_SERVER_NATIVE_REUSE_BLOCKS_H_
#define PS_SERVER_NATIVE_REUSE_BLOCKS_H_

#include <cstddef>
#include <string>

namespace ps_server {

// Has the libraries that are loaded from below `folder` (its path ends in a slash) take
// the blocks that they ask of posix_memalign from one pool of the process, and returns
// how many do. A block must be freed by one of these libraries. Blocks that
// were taken before go back where they came from. For the threads' sake, see ReplaceImport.
size_t ReuseBlocks(const std::string& folder);

// Bytes of all pages that the pool has, 0 before the first ReuseBlocks.
size_t BytesOfReusedBlocks();

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_REUSE_BLOCKS_H_
