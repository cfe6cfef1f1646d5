#include "xxh64.h"

#include <charconv>
#include <stdexcept>
#include <string>

namespace ps_server {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;

constexpr size_t kNumLanes = 4;

uint64_t RotateLeft(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

// Compilers turn the loop into one load.
template <typename Word>
uint64_t ReadLittleEndian(const uint8_t* at) {
  uint64_t word = 0;
  for (size_t i = 0; i < sizeof(Word); ++i) word |= uint64_t{at[i]} << (8 * i);
  return word;
}

uint64_t Round(uint64_t lane, uint64_t word) {
  return RotateLeft(lane + word * kPrime2, 31) * kPrime1;
}

// Consumes whole blocks of four words, one word a lane, and returns the lanes joined.
uint64_t HashBlocks(const uint8_t** at, const uint8_t* end, uint64_t seed) {
  uint64_t lanes[kNumLanes] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; end - *at >= 32; *at += 32) {
    for (size_t i = 0; i < kNumLanes; ++i) {
      lanes[i] = Round(lanes[i], ReadLittleEndian<uint64_t>(*at + 8 * i));
    }
  }
  uint64_t hash = RotateLeft(lanes[0], 1) + RotateLeft(lanes[1], 7) + RotateLeft(lanes[2], 12) +
                  RotateLeft(lanes[3], 18);
  for (uint64_t lane : lanes) hash = (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

uint64_t Avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

template <typename Offset>
void HashTextImpl(const Offset* offsets, size_t n, const uint8_t* data, size_t data_size,
                  uint64_t seed, uint64_t* out) {
  if (offsets[0] < 0) {
    throw std::invalid_argument("offsets start at 0 or above, got offsets[0]=" +
                                std::to_string(offsets[0]));
  }
  for (size_t i = 0; i < n; ++i) {
    const Offset first = offsets[i], end = offsets[i + 1];
    if (end < first || static_cast<uint64_t>(end) > data_size) {
      throw std::invalid_argument("offsets ascend and end within the data, got offsets[" +
                                  std::to_string(i) + "]=" + std::to_string(first) + ", offsets[" +
                                  std::to_string(i + 1) + "]=" + std::to_string(end) +
                                  ", len(data)=" + std::to_string(data_size));
    }
    out[i] = Xxh64(data + first, static_cast<size_t>(end - first), seed);
  }
}

template <typename Integer>
void HashIntegersImpl(const Integer* values, size_t n, uint64_t seed, uint64_t* out) {
  char text[20];  // "-9223372036854775808" and "18446744073709551615" take 20
  for (size_t i = 0; i < n; ++i) {
    const char* end = std::to_chars(text, text + sizeof(text), values[i]).ptr;
    out[i] = Xxh64(text, static_cast<size_t>(end - text), seed);
  }
}

}  // namespace

uint64_t Xxh64(const void* data, size_t size, uint64_t seed) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  const uint8_t* const end = at + size;
  uint64_t hash = size >= 32 ? HashBlocks(&at, end, seed) : seed + kPrime5;
  hash += size;
  for (; end - at >= 8; at += 8) {
    hash = RotateLeft(hash ^ Round(0, ReadLittleEndian<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = RotateLeft(hash ^ (ReadLittleEndian<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at != end; ++at) hash = RotateLeft(hash ^ (*at * kPrime5), 11) * kPrime1;
  return Avalanche(hash);
}

void HashText(const int32_t* offsets, size_t n, const uint8_t* data, size_t data_size,
              uint64_t seed, uint64_t* out) {
  HashTextImpl(offsets, n, data, data_size, seed, out);
}

void HashText(const int64_t* offsets, size_t n, const uint8_t* data, size_t data_size,
              uint64_t seed, uint64_t* out) {
  HashTextImpl(offsets, n, data, data_size, seed, out);
}

void HashIntegers(const int64_t* values, size_t n, uint64_t seed, uint64_t* out) {
  HashIntegersImpl(values, n, seed, out);
}

void HashIntegers(const uint64_t* values, size_t n, uint64_t seed, uint64_t* out) {
  HashIntegersImpl(values, n, seed, out);
}

}  // namespace ps_server
