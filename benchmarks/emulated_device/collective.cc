#include "collective.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace emulated {
namespace {

Span SpanOf(const void* at, size_t size) {
  return {static_cast<char*>(const_cast<void*>(at)), size};
}

template <typename T>
T Combined(T one, T other, Reduction reduction) {
  switch (reduction) {
    case Reduction::kMax:
      return std::max(one, other);
    case Reduction::kMin:
      return std::min(one, other);
    case Reduction::kProduct:
      return one * other;
    default:
      return one + other;
  }
}

template <typename T>
void Combine(const std::vector<char>& parts, size_t size, Reduction reduction, void* to) {
  const T* from = reinterpret_cast<const T*>(parts.data());
  T* total = static_cast<T*>(to);
  const size_t num = size / sizeof(T), num_parts = parts.size() / size;
  std::copy_n(from, num, total);
  for (size_t part = 1; part < num_parts; ++part) {
    from += num;
    for (size_t i = 0; i < num; ++i) total[i] = Combined(total[i], from[i], reduction);
  }
  if (reduction != Reduction::kMean) return;
  for (size_t i = 0; i < num; ++i) total[i] /= static_cast<T>(num_parts);
}

// Combines parts of `size` bytes, one behind the other, into `to`.
void Combine(const std::vector<char>& parts, size_t size, Rule rule, void* to) {
  if (size == 0) return;
  switch (rule.element) {
    case Element::kInt32:
      return Combine<int32_t>(parts, size, rule.reduction, to);
    case Element::kInt64:
      return Combine<int64_t>(parts, size, rule.reduction, to);
    case Element::kFloat32:
      return Combine<float>(parts, size, rule.reduction, to);
    case Element::kFloat64:
      return Combine<double>(parts, size, rule.reduction, to);
  }
}

}  // namespace

size_t SizeOf(Element element) {
  return element == Element::kInt32 || element == Element::kFloat32 ? 4 : 8;
}

void Reduce(Communicator& comm, const void* from, void* to, size_t size, Rule rule,
            std::optional<size_t> root) {
  const bool is_mine = root.value_or(comm.rank()) == comm.rank();
  std::vector<char> parts(is_mine ? comm.size() * size : 0);
  Lanes out(comm.size()), in(comm.size());
  for (size_t i = 0; i < comm.size(); ++i) {
    if (root.value_or(i) == i) out[i].push_back(SpanOf(from, size));
    if (is_mine) in[i].push_back(SpanOf(parts.data() + i * size, size));
  }
  comm.Exchange(std::move(out), std::move(in));
  if (is_mine) Combine(parts, size, rule, to);
}

void ReduceScatter(Communicator& comm, const void* from, void* to, size_t size, Rule rule) {
  std::vector<char> parts(comm.size() * size);
  Lanes out(comm.size()), in(comm.size());
  for (size_t i = 0; i < comm.size(); ++i) {
    out[i].push_back(SpanOf(static_cast<const char*>(from) + i * size, size));
    in[i].push_back(SpanOf(parts.data() + i * size, size));
  }
  comm.Exchange(std::move(out), std::move(in));
  Combine(parts, size, rule, to);
}

void AllGather(Communicator& comm, const void* from, void* to, size_t size) {
  Lanes out(comm.size()), in(comm.size());
  for (size_t i = 0; i < comm.size(); ++i) {
    out[i].push_back(SpanOf(from, size));
    in[i].push_back(SpanOf(static_cast<char*>(to) + i * size, size));
  }
  comm.Exchange(std::move(out), std::move(in));
}

void Broadcast(Communicator& comm, void* at, size_t size, size_t root) {
  Lanes out(comm.size()), in(comm.size());
  if (comm.rank() != root) in[root].push_back(SpanOf(at, size));
  for (size_t i = 0; i < comm.size(); ++i) {
    if (comm.rank() == root && i != root) out[i].push_back(SpanOf(at, size));
  }
  comm.Exchange(std::move(out), std::move(in));
}

}  // namespace emulated
