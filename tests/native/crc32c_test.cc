#include "crc32c.h"

#include <memory>
#include <random>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

// The definition: a bit at a time.
uint32_t ByBits(const uint8_t* data, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(ChecksumsAreThoseOfTheReference) {
  for (const auto checksum : {&Crc32c, &Crc32cByTables}) {
    CHECK_EQ(checksum("", 0, 0), 0u);
    CHECK_EQ(checksum("123456789", 9, 0), 0xe3069283u);
    std::vector<uint8_t> block(32, 0);
    CHECK_EQ(checksum(block.data(), 32, 0), 0x8a9136aau);
    block.assign(32, 0xff);
    CHECK_EQ(checksum(block.data(), 32, 0), 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; ++i) block[i] = i;
    CHECK_EQ(checksum(block.data(), 32, 0), 0x46dd794eu);
    for (uint8_t i = 0; i < 32; ++i) block[i] = static_cast<uint8_t>(31 - i);
    CHECK_EQ(checksum(block.data(), 32, 0), 0x113fdb5cu);
  }
}

// Each piece is a block of its own size, so that AddressSanitizer sees a byte read beyond it.
TEST(PiecesOfAnySizeAtAnyAddressGoOnFromOneAnother) {
  std::mt19937_64 random(3);
  for (size_t size = 0; size < 70; ++size) {
    for (size_t shift = 0; shift < 9; ++shift) {
      const std::unique_ptr<uint8_t[]> block(new uint8_t[shift + size]);
      for (size_t i = 0; i < shift + size; ++i) block[i] = static_cast<uint8_t>(random());
      const uint32_t whole = ByBits(block.get(), shift + size);
      for (const auto checksum : {&Crc32c, &Crc32cByTables}) {
        CHECK_EQ(checksum(block.get() + shift, size, checksum(block.get(), shift, 0)), whole);
      }
    }
  }
}

}  // namespace
}  // namespace ps_server
