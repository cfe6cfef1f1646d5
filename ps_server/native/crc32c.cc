#include "crc32c.h"

#include <array>
#include <cstring>

#ifdef __x86_64__
#include <cpuid.h>
#include <nmmintrin.h>
#endif

namespace ps_server {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // bits reversed: the lowest is that of x^31

using Table = std::array<uint32_t, 256>;

// Table k takes a byte past k more of zeros, so that eight bytes are eight
// look-ups that do not wait for one another.
constexpr std::array<Table, 8> MakeTables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = MakeTables();

#ifdef __x86_64__

bool HasInstruction() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}

// The instruction takes 8 bytes every third cycle: 6 to 8 GB/s. Three streams at once
// would take 8 a cycle, and tables to join them; the page cache copies at no more.
__attribute__((target("sse4.2"))) uint32_t ByInstruction(const uint8_t* at, size_t size,
                                                         uint32_t crc) {
  uint64_t state = ~crc;
  for (; size >= 8; at += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    state = _mm_crc32_u64(state, word);
  }
  uint32_t rest = static_cast<uint32_t>(state);
  for (; size > 0; ++at, --size) rest = _mm_crc32_u8(rest, *at);
  return ~rest;
}

#endif

}  // namespace

uint32_t Crc32c(const void* data, size_t size, uint32_t crc) {
#ifdef __x86_64__
  static const bool has_instruction = HasInstruction();
  if (has_instruction) return ByInstruction(static_cast<const uint8_t*>(data), size, crc);
#endif
  return Crc32cByTables(data, size, crc);
}

uint32_t Crc32cByTables(const void* data, size_t size, uint32_t crc) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; at += 8, size -= 8) {
    const uint32_t first = crc ^ (uint32_t{at[0]} | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 |
                                  uint32_t{at[3]} << 24);
    crc = kTables[7][first & 255] ^ kTables[6][first >> 8 & 255] ^ kTables[5][first >> 16 & 255] ^
          kTables[4][first >> 24] ^ kTables[3][at[4]] ^ kTables[2][at[5]] ^ kTables[1][at[6]] ^
          kTables[0][at[7]];
  }
  for (; size > 0; ++at, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 255];
  return ~crc;
}

}  // namespace ps_server
