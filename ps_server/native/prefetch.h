// Loads that are started early.

#ifndef PS_SERVER_NATIVE_PREFETCH_H_
#define PS_SERVER_NATIVE_PREFETCH_H_

#include <algorithm>
#include <cstddef>

namespace ps_server {

// Starts to load the line of `address`.
inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  // g++ 12 takes a function that only prefetches for one without effect, and
  // drops the calls of it, prefetch and all.
  asm volatile("");
}

// Starts to load `bytes` bytes at `start`, at most the first four lines: the
// CPU's own prefetcher sees the rest coming.
inline void PrefetchLines(const void* start, size_t bytes) {
  constexpr size_t kLine = 64;
  const char* const first = static_cast<const char*>(start);
  const char* const end = first + std::min(bytes, 4 * kLine);
  for (const char* at = first; at < end; at += kLine) Prefetch(at);
}

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_PREFETCH_H_
