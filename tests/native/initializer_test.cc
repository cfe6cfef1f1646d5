#include "initializer.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

namespace ps_server {
namespace {

struct Golden {
  uint64_t seed, key;
  uint32_t uniform[4];  // of [-3, 5)
  uint32_t normal[4];   // of mean 2, standard deviation 0.5
};

// Made with Python's integers and libm, by tests/oracles/dict_table.py.
const Golden kGolden[] = {
    {0,
     0,
     {0xbe97564f, 0xbf58d23a, 0xbf53d4e3, 0x3f576322},
     {0x3ff4b28e, 0x402eca0a, 0x3f9976a7, 0x40066bd4}},
    {1,
     UINT64_MAX,
     {0xbf185feb, 0x3e8b304f, 0x40595922, 0x4078bcbc},
     {0x3fac8f24, 0x401ada43, 0x400dbac6, 0x3fdf26c8}},
    {0x0123456789abcdef,
     42,
     {0xc0037979, 0x3fe2ca4d, 0x4091605e, 0x409dbae6},
     {0x3f934e53, 0x3fb4a659, 0x400af562, 0x3ffec716}},
};

TEST(WeightsHaveTheSameBitsOnEveryMachine) {
  for (const Golden& golden : kGolden) {
    float weights[4];
    Initializer::Uniform(-3, 5, golden.seed).Fill(golden.key, weights, 4);
    CHECK_EQ(std::memcmp(weights, golden.uniform, sizeof(weights)), 0);
    Initializer::Normal(2, 0.5, golden.seed).Fill(golden.key, weights, 4);
    CHECK_EQ(std::memcmp(weights, golden.normal, sizeof(weights)), 0);
  }
}

TEST(WeightsAreTheFirstOfThoseOfAWiderRowAndNoneIsWrittenBehindThem) {
  for (const Initializer& initializer :
       {Initializer::Constant(0.25), Initializer::Uniform(-1, 1, 5),
        Initializer::Normal(0, 1, 5)}) {
    float wide[71];
    initializer.Fill(9, wide, 71);
    for (size_t dim = 1; dim <= 70; ++dim) {
      std::vector<float> narrow(dim + 1, 77.0f);
      initializer.Fill(9, narrow.data(), dim);
      CHECK_EQ(std::memcmp(narrow.data(), wide, dim * sizeof(float)), 0);
      CHECK_EQ(narrow[dim], 77.0f);
    }
  }
}

struct Moments {
  double mean = 0, variance = 0, lag = 0;  // lag: correlation with the weight before
};

Moments MomentsOf(const std::vector<float>& weights) {
  const double n = static_cast<double>(weights.size());
  Moments moments;
  for (float w : weights) moments.mean += w / n;
  double before = 0;
  for (float w : weights) {
    moments.variance += (w - moments.mean) * (w - moments.mean) / n;
    moments.lag += before * (w - moments.mean) / n;
    before = w - moments.mean;
  }
  moments.lag /= moments.variance;
  return moments;
}

// The weights of neighbouring keys, or of one key under neighbouring seeds.
std::vector<float> Draw(bool is_normal, bool is_by_seed) {
  constexpr size_t kDim = 9, kNumRows = 20'000;
  std::vector<float> weights(kDim * kNumRows);
  for (uint64_t i = 0; i < kNumRows; ++i) {
    const uint64_t seed = is_by_seed ? i : 3, key = is_by_seed ? 3 : i;
    const Initializer initializer =
        is_normal ? Initializer::Normal(0, 1, seed) : Initializer::Uniform(-1, 1, seed);
    initializer.Fill(key, &weights[i * kDim], kDim);
  }
  return weights;
}

TEST(WeightsAreDistributedAsTheyAreNamedWhetherKeysOrSeedsAreNeighbours) {
  for (bool is_by_seed : {false, true}) {
    const Moments normal = MomentsOf(Draw(true, is_by_seed));
    CHECK(std::abs(normal.mean) < 0.01);
    CHECK(std::abs(normal.variance - 1) < 0.01);
    CHECK(std::abs(normal.lag) < 0.01);
    const std::vector<float> draws = Draw(false, is_by_seed);
    const Moments uniform = MomentsOf(draws);
    CHECK(std::abs(uniform.mean) < 0.01);
    CHECK(std::abs(uniform.variance - 1.0 / 3) < 0.005);
    CHECK(std::abs(uniform.lag) < 0.01);
    for (float w : draws) CHECK(-1 <= w && w < 1);
  }
}

TEST(UniformStaysBelowItsEndWhereRoundingWouldReachIt) {
  const float end = std::nextafter(1.0f, 2.0f);
  for (uint64_t key = 0; key < 100; ++key) {
    float weights[4];
    Initializer::Uniform(1, end, 0).Fill(key, weights, 4);
    for (float w : weights) CHECK_EQ(w, 1.0f);
  }
}

TEST(RowOfNoWeightsIsNoWork) {
  Initializer::Constant(1).Fill(0, nullptr, 0);
  Initializer::Uniform(0, 1, 0).Fill(0, nullptr, 0);
  Initializer::Normal(0, 1, 0).Fill(0, nullptr, 0);
}

}  // namespace
}  // namespace ps_server
