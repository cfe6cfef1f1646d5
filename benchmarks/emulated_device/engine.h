// Engine: what a device has one of, so that its users take turns.
#ifndef EMULATED_ENGINE_H_
#define EMULATED_ENGINE_H_

#include <chrono>
#include <mutex>

namespace emulated {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// The compute units, or one direction of the link to the host. Streams that use
// it at once get it one after the other, as two copies share one link.
//
// Thread safety: Use may be called from any thread.
// Invariant: between its first and its last use, no more than one second of use ends a second.
class Engine {
 public:
  // Returns when the engine has been this caller's for `time`. Meanwhile the
  // thread sleeps: a host that waits for a device has its core for others.
  void Use(Seconds time);

 private:
  std::mutex mutex_;
  Clock::time_point free_at_;  // guarded by mutex_
};

}  // namespace emulated

#endif  // EMULATED_ENGINE_H_
