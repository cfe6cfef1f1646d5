// Stream: work that a thread does in order. Event: a place in that order.
#ifndef EMULATED_STREAM_H_
#define EMULATED_STREAM_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace emulated {

// A number that rises, until it does not any more, and that can be waited for.
//
// Thread safety: all methods may be called from any thread.
class Progress {
 public:
  void Reach(uint64_t mark);
  void Fail();  // nothing more is reached

  // Returns whether it was reached, when it was or never will be.
  bool WaitFor(uint64_t mark);
  // Whether WaitFor returns at once.
  bool IsOver(uint64_t mark);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t reached_ = 0;     // guarded by mutex_
  bool has_failed_ = false;  // guarded by mutex_
};

// What a stream had been given when an event was recorded. A copy of it stays
// good if the event is recorded again, or the stream ends.
struct Mark {
  std::shared_ptr<Progress> progress;  // null: never recorded, which is there already
  uint64_t number = 0;

  bool Wait() const;  // whether it was reached
  bool IsOver() const;
};

// Runs pieces of work one after another in a thread of its own.
//
// As on a GPU, the one that fails is told by who waits: after work that throws, a
// stream runs nothing more, and its later marks are never reached.
//
// Thread safety: all methods may be called from any thread but the stream's own;
// work that is added by one thread is run in the order in which that added it.
// Invariants: 1. Piece n is begun when piece n - 1 has ended.
//             2. The destructor returns when all that was added has ended.
class Stream {
 public:
  using Work = std::function<void()>;

  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Add(Work work);

  // Returns the mark that is reached when all that was added before has ended.
  Mark Record();

 private:
  void Run();

  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;  // guarded by mutex_
  uint64_t num_added_ = 0;    // guarded by mutex_
  bool is_ending_ = false;    // guarded by mutex_
  std::thread thread_;        // last: it runs on the members above
};

// A mark that may be set and waited for from several threads.
class Event {
 public:
  void Set(Mark mark);
  Mark mark();

 private:
  std::mutex mutex_;
  Mark mark_;  // guarded by mutex_
};

}  // namespace emulated

#endif  // EMULATED_STREAM_H_
