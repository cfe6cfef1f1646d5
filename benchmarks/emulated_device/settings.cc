#include "settings.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace emulated {
namespace {

// Returns the positive number that a variable holds, or `otherwise` if it is not set.
double Number(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(value) || value <= 0) {
    std::fprintf(stderr, "%s is a number above 0, got '%s'; correct it or unset it\n", name, text);
    std::exit(2);
  }
  return value;
}

}  // namespace

Settings Settings::FromEnvironment() {
  return {static_cast<size_t>(Number("EMULATED_DEVICES", 1)),
          static_cast<size_t>(Number("EMULATED_MEMORY", 1 << 30)),
          Number("EMULATED_BANDWIDTH", 12e9), Number("EMULATED_PEER_BANDWIDTH", 12e9)};
}

}  // namespace emulated
