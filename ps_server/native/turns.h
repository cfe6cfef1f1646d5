// Work on many stripes, a little of one after the other.

#ifndef PS_SERVER_NATIVE_TURNS_H_
#define PS_SERVER_NATIVE_TURNS_H_

#include <cstddef>

namespace ps_server {

// Calls work(i, round), which tells whether i has more, for each i below n in turns,
// round 0, 1, ... until none has more.
//
// Each call takes a lock for microseconds. Whoever waits for it gets it while the
// others have their turns: a thread that takes a lock again at once is nearly always
// faster than one that must be woken for it, and would hold it for all of its work.
template <typename Work>
void TakeTurns(size_t n, const Work& work) {
  bool has_more = true;
  for (size_t round = 0; has_more; ++round) {
    has_more = false;
    for (size_t i = 0; i < n; ++i) has_more |= work(i, round);
  }
}

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_TURNS_H_
