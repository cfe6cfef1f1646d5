// What the processes of a Communicator do together with arrays, each as NCCL defines it.
//
// An array is where a stream's thread may read and write it. Every rank calls the
// same function with arrays of the same size. All of it is made of Exchange: who
// sends what to whom says all. What is reduced is combined in the order of the
// ranks, whoever combines it: the result is of equal bits on all.
#ifndef EMULATED_COLLECTIVE_H_
#define EMULATED_COLLECTIVE_H_

#include <cstddef>
#include <optional>

#include "communicator.h"

namespace emulated {

enum class Element { kInt32, kInt64, kFloat32, kFloat64 };
enum class Reduction { kSum, kMean, kMax, kMin, kProduct };

size_t SizeOf(Element element);

// How elements become one.
struct Rule {
  Element element;
  Reduction reduction;
};

// Writes the reduction of all ranks' `from`, of `size` bytes, to `to`, which may be
// the same; of one rank alone, if there is a root.
void Reduce(Communicator& comm, const void* from, void* to, size_t size, Rule rule,
            std::optional<size_t> root = {});

// Writes part `rank` of the reduction of all ranks' `from` to `to`, of `size` bytes.
void ReduceScatter(Communicator& comm, const void* from, void* to, size_t size, Rule rule);

// Writes every rank's `from`, of `size` bytes, to `to`, one after another.
void AllGather(Communicator& comm, const void* from, void* to, size_t size);

// Writes the root's bytes to all others'.
void Broadcast(Communicator& comm, void* at, size_t size, size_t root);

}  // namespace emulated

#endif  // EMULATED_COLLECTIVE_H_
