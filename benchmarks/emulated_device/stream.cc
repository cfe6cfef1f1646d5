#include "stream.h"

#include <sys/prctl.h>

#include <cstdio>
#include <exception>
#include <utility>

namespace emulated {

void Progress::Reach(uint64_t mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  reached_ = mark;
  changed_.notify_all();
}

void Progress::Fail() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_failed_ = true;
  changed_.notify_all();
}

bool Progress::WaitFor(uint64_t mark) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= mark || has_failed_; });
  return reached_ >= mark;
}

bool Progress::IsOver(uint64_t mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  return reached_ >= mark || has_failed_;
}

bool Mark::Wait() const { return progress == nullptr || progress->WaitFor(number); }

bool Mark::IsOver() const { return progress == nullptr || progress->IsOver(number); }

Stream::Stream() : thread_([this] { Run(); }) {}

Stream::~Stream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::Add(Work work) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(work));
  ++num_added_;
  changed_.notify_all();
}

Mark Stream::Record() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {progress_, num_added_};
}

void Stream::Run() {
  // What takes a stated time sleeps for it, and Linux adds 50 us to a sleep where nobody objects.
  prctl(PR_SET_TIMERSLACK, 1UL);
  bool has_failed = false;
  for (uint64_t num_done = 0;;) {
    Work work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (has_failed) continue;
    try {
      work();
      progress_->Reach(++num_done);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "emulated device: a stream has failed: %s\n", error.what());
      has_failed = true;
      progress_->Fail();
    }
  }
}

void Event::Set(Mark mark) {
  std::lock_guard<std::mutex> lock(mutex_);
  mark_ = std::move(mark);
}

Mark Event::mark() {
  std::lock_guard<std::mutex> lock(mutex_);
  return mark_;
}

}  // namespace emulated
