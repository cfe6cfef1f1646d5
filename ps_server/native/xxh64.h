// XXH64, the hash of a slot's values: key(slot, value) of "xxh64-slot-v1" is
// XXH64(value, seed = XXH64(slot, seed = 0)), both in UTF-8.
//
// Pure functions. Words are read as little-endian, whatever the machine.
//
// Reference: Collet, "xxHash fast digest algorithm", version 0.2.0.

#ifndef PS_SERVER_NATIVE_XXH64_H_
#define PS_SERVER_NATIVE_XXH64_H_

#include <cstddef>
#include <cstdint>

namespace ps_server {

uint64_t Xxh64(const void* data, size_t size, uint64_t seed);

// Hashes the n texts `data[offsets[i]:offsets[i + 1]]`, the layout of an Arrow
// string array. Throws std::invalid_argument unless
// 0 <= offsets[0] <= ... <= offsets[n] <= data_size.
void HashText(const int32_t* offsets, size_t n, const uint8_t* data, size_t data_size,
              uint64_t seed, uint64_t* out);
void HashText(const int64_t* offsets, size_t n, const uint8_t* data, size_t data_size,
              uint64_t seed, uint64_t* out);

// Hashes the decimal text of each value, as HashText would.
void HashIntegers(const int64_t* values, size_t n, uint64_t seed, uint64_t* out);
void HashIntegers(const uint64_t* values, size_t n, uint64_t seed, uint64_t* out);

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_XXH64_H_
