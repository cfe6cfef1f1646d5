#include "xxh64.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

TEST(DigestsAreThoseOfTheReference) {
  const std::string text = "The quick brown fox jumps over the lazy dog, and over the moon too";
  CHECK_EQ(Xxh64("", 0, 0), 0xef46db3751d8e999u);
  CHECK_EQ(Xxh64("a", 1, 0), 0xd24ec4f1a98c6e5bu);
  CHECK_EQ(Xxh64(text.data(), text.size(), 77), 0xa12d3c2451fe822du);
}

// Each text is a block of its own size, so that AddressSanitizer sees a byte read beyond it.
TEST(TextsAreReadToTheirEndAndNoFurther) {
  for (size_t size = 0; size < 100; ++size) {
    for (size_t shift = 0; shift < 4; ++shift) {
      const std::unique_ptr<uint8_t[]> exact(new uint8_t[shift + size]);
      for (size_t i = 0; i < shift + size; ++i) exact[i] = static_cast<uint8_t>(i - shift);
      const int64_t offsets[] = {static_cast<int64_t>(shift), static_cast<int64_t>(shift + size)};
      uint64_t hash;
      HashText(offsets, 1, exact.get(), shift + size, 5, &hash);
      CHECK_EQ(hash, Xxh64(exact.get() + shift, size, 5));
      if (size == 0) continue;
      exact[shift + size - 1] ^= 1;
      CHECK(hash != Xxh64(exact.get() + shift, size, 5));
    }
  }
}

TEST(IntegersHashAsTheirText) {
  const int64_t values[] = {0, 7, -1, 123456789, INT64_MIN, INT64_MAX};
  uint64_t hashes[6];
  HashIntegers(values, 6, 9, hashes);
  for (size_t i = 0; i < 6; ++i) {
    const std::string text = std::to_string(values[i]);
    CHECK_EQ(hashes[i], Xxh64(text.data(), text.size(), 9));
  }
  const uint64_t largest = UINT64_MAX;
  HashIntegers(&largest, 1, 9, hashes);
  CHECK_EQ(hashes[0], Xxh64("18446744073709551615", 20, 9));
}

TEST(OffsetsThatLeaveTheDataAreRefused) {
  const uint8_t data[4] = {};
  uint64_t hashes[2];
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{-1, 2, 3}, {0, 2, 1}, {0, 2, 5}}) {
    CHECK_THROWS(std::invalid_argument, HashText(offsets.data(), 2, data, 4, 0, hashes));
  }
}

}  // namespace
}  // namespace ps_server
