// What the weights of a new row are: a function of (seed, key) alone, so that
// they depend on neither the order of keys, nor the thread, nor the server.
//
// A value, immutable, hence thread-safe.
//
// Invariants:
//   1. Uniform weights w hold float(low) <= w, and w < float(high) unless the two are equal.
//   2. The arithmetic is that of IEEE 754 (+ - * / sqrt, no libm), so that the
//      bits are equal on every machine and under every compiler.

#ifndef PS_SERVER_NATIVE_INITIALIZER_H_
#define PS_SERVER_NATIVE_INITIALIZER_H_

#include <cstddef>
#include <cstdint>

namespace ps_server {

class Initializer {
 public:
  static Initializer Constant(double value);
  static Initializer Uniform(double low, double high, uint64_t seed);
  static Initializer Normal(double mean, double std, uint64_t seed);

  // Writes the `dim` weights that the row of `key` starts with.
  void Fill(uint64_t key, float* weights, size_t dim) const;

 private:
  enum class Kind { kConstant, kUniform, kNormal };

  Initializer(Kind kind, double first, double second, uint64_t seed)
      : kind_(kind), first_(first), second_(second), seed_(seed) {}

  void FillUniform(uint64_t stream, float* weights, size_t dim) const;
  void FillNormal(uint64_t stream, float* weights, size_t dim) const;

  Kind kind_;
  double first_;   // value, low or mean
  double second_;  // high or std
  uint64_t seed_;
};

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_INITIALIZER_H_
