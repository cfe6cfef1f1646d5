// CRC-32C (Castagnoli), the checksum of journals and checkpoints.
//
// Pure functions. By the CPU's own instruction where it has one, else by tables,
// with equal results.
//
// Reference: Castagnoli, Braeuer, Herrmann, "Optimization of Cyclic Redundancy-Check
// Codes with 24 and 32 Parity Bits", IEEE Transactions on Communications 41(6), 1993.
// Tables: Kounavis, Berry, "A Systematic Approach to Building High Performance
// Software-Based CRC Generators", ISCC 2005.

#ifndef PS_SERVER_NATIVE_CRC32C_H_
#define PS_SERVER_NATIVE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace ps_server {

// Returns the checksum of what `crc` is the checksum of, followed by `data`; of
// nothing it is 0.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0);

// The same by tables, on every CPU.
uint32_t Crc32cByTables(const void* data, size_t size, uint32_t crc = 0);

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_CRC32C_H_
