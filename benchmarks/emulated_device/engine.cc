#include "engine.h"

#include <algorithm>
#include <thread>

namespace emulated {

void Engine::Use(Seconds time) {
  Clock::time_point end;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    end = std::max(free_at_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
    free_at_ = end;
  }
  std::this_thread::sleep_until(end);
}

}  // namespace emulated
