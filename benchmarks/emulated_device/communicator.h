// Communicator: one of several processes of a host that exchange bytes.
#ifndef EMULATED_COMMUNICATOR_H_
#define EMULATED_COMMUNICATOR_H_

#include <cstddef>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.h"

namespace emulated {

// Another process has ended, or did not come.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Bytes that somebody else owns.
struct Span {
  char* at;
  size_t size;
};

// What goes to each rank, or comes from it, in order.
using Lanes = std::vector<std::deque<Span>>;

// A connection to each of the others, over Unix sockets: the kernel tells of the
// end of a process, and nothing of them is left in a file system.
//
// Thread safety: all methods may be called from any thread.
// Invariants: 1. Bytes from one rank to another arrive in the order of their Exchanges.
//             2. Once an Exchange has failed, all connections are closed: the others'
//                fail, and so do later ones.
class Communicator {
 public:
  // Returns when all `size` processes with the same id are connected. Throws
  // PeerLost if they are not within a minute.
  //
  // `wire` is what its bytes share with those of other communicators, at
  // `bandwidth` bytes a second; it outlives this.
  Communicator(const std::string& id, size_t rank, size_t size, Engine& wire, double bandwidth);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Returns a new id, of kIdSize letters and digits.
  static std::string NewId();
  static constexpr size_t kIdSize = 32;

  // Sends and receives all at once, and returns when the stated time is over, too.
  // Throws PeerLost.
  //
  // REQUIRES: both are of `size()` lanes; what this rank sends another, that one
  // receives in its Exchange of the same number, in spans of the same sizes.
  void Exchange(Lanes to, Lanes from);

  size_t rank() const { return rank_; }
  size_t size() const { return sockets_.size(); }

 private:
  void Connect(const std::string& id);
  void Move(Lanes& to, Lanes& from);
  void Close();

  const size_t rank_;
  Engine& wire_;
  const double bandwidth_;
  std::mutex mutex_;
  std::vector<int> sockets_;  // guarded by mutex_; by rank, -1: this one, or closed
};

}  // namespace emulated

#endif  // EMULATED_COMMUNICATOR_H_
