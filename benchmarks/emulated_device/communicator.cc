#include "communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

namespace emulated {
namespace {

constexpr std::chrono::minutes kPatience{1};
constexpr std::chrono::milliseconds kLookAgain{2};

[[noreturn]] void Lose(size_t rank, const std::string& how) {
  throw PeerLost("rank " + std::to_string(rank) + " " + how);
}

// An address without a file, which ends with who listens there.
struct Address {
  Address(const std::string& id, size_t rank) {
    const std::string name = "emulated-" + id + "-" + std::to_string(rank);
    value.sun_family = AF_UNIX;
    std::memcpy(value.sun_path + 1, name.data(), name.size());
    size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }

  sockaddr_un value{};
  socklen_t size;
};

int NewSocket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// Returns a connection to a rank, once that listens.
int Call(const std::string& id, size_t rank, Clock::time_point deadline) {
  const Address address(id, rank);
  const int made = NewSocket();
  while (connect(made, address.get(), address.size) != 0) {
    if (Clock::now() > deadline) {
      close(made);
      Lose(rank, "does not listen");
    }
    std::this_thread::sleep_for(kLookAgain);
  }
  return made;
}

// Returns the next connection to a listener, and the rank that it is of.
std::pair<int, size_t> Answer(int listener, Clock::time_point deadline) {
  const auto left = deadline - Clock::now();
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
  pollfd look{listener, POLLIN, 0};
  if (poll(&look, 1, static_cast<int>(std::max<int64_t>(wait, 0))) < 1) {
    throw PeerLost("a rank does not call");
  }
  const int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  uint64_t rank;
  if (recv(made, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank)) {
    close(made);
    throw PeerLost("a rank has called and gone");
  }
  return {made, rank};
}

// Returns the bytes of all lanes but one's own.
size_t SizeOf(const Lanes& lanes, size_t own) {
  size_t size = 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (i == own) continue;
    for (const Span& span : lanes[i]) size += span.size;
  }
  return size;
}

// Moves what can be moved now, by `send` or `recv`.
template <typename Mover>
void Advance(std::deque<Span>& lane, size_t rank, Mover move) {
  Span& span = lane.front();
  const ssize_t moved = move(span);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (moved <= 0) Lose(rank, "is gone");
  span.at += moved;
  span.size -= static_cast<size_t>(moved);
  if (span.size == 0) lane.pop_front();
}

}  // namespace

Communicator::Communicator(const std::string& id, size_t rank, size_t size, Engine& wire,
                           double bandwidth)
    : rank_(rank), wire_(wire), bandwidth_(bandwidth), sockets_(size, -1) {
  try {
    Connect(id);
  } catch (...) {
    Close();
    throw;
  }
}

Communicator::~Communicator() { Close(); }

std::string Communicator::NewId() {
  std::random_device random;
  std::string id(kIdSize, '0');
  for (char& letter : id) letter = "0123456789abcdef"[random() % 16];
  return id;
}

// Each calls those before it and is called by those behind it.
void Communicator::Connect(const std::string& id) {
  const auto deadline = Clock::now() + kPatience;
  const Address own(id, rank_);
  const int listener = NewSocket();
  if (bind(listener, own.get(), own.size) != 0 || listen(listener, SOMAXCONN) != 0) {
    close(listener);
    Lose(rank_, "cannot listen, or is there twice");
  }
  try {
    for (size_t i = 0; i < rank_; ++i) {
      sockets_[i] = Call(id, i, deadline);
      const uint64_t rank = rank_;
      if (send(sockets_[i], &rank, sizeof(rank), MSG_NOSIGNAL) != sizeof(rank)) Lose(i, "is gone");
    }
    for (size_t i = rank_ + 1; i < size(); ++i) {
      const auto [made, rank] = Answer(listener, deadline);
      sockets_.at(rank) = made;
    }
  } catch (...) {
    close(listener);
    throw;
  }
  close(listener);
}

void Communicator::Exchange(Lanes to, Lanes from) {
  const size_t most = std::max(SizeOf(to, rank_), SizeOf(from, rank_));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
      Move(to, from);
    } catch (const PeerLost&) {
      Close();
      throw;
    }
  }
  wire_.Use(Seconds(static_cast<double>(most) / bandwidth_));
}

void Communicator::Move(Lanes& to, Lanes& from) {
  auto& mine = to[rank_];
  for (auto& own = from[rank_]; !own.empty(); own.pop_front(), mine.pop_front()) {
    std::memmove(own.front().at, mine.front().at, own.front().size);
  }
  for (;;) {
    std::vector<pollfd> looks;
    std::vector<size_t> ranks;
    for (size_t i = 0; i < size(); ++i) {
      // What has no bytes never arrives.
      for (auto* lane : {&to[i], &from[i]}) {
        while (!lane->empty() && lane->front().size == 0) lane->pop_front();
      }
      const int events = (to[i].empty() ? 0 : POLLOUT) | (from[i].empty() ? 0 : POLLIN);
      if (events == 0) continue;
      if (sockets_[i] < 0) Lose(i, "is gone");
      looks.push_back({sockets_[i], static_cast<short>(events), 0});
      ranks.push_back(i);
    }
    if (looks.empty()) return;
    poll(looks.data(), looks.size(), -1);
    for (size_t n = 0; n < looks.size(); ++n) {
      const size_t i = ranks[n];
      const int socket = looks[n].fd;
      const int ended = looks[n].revents & (POLLERR | POLLHUP);
      if (!from[i].empty() && (ended | (looks[n].revents & POLLIN))) {
        Advance(from[i], i,
                [&](const Span& span) { return recv(socket, span.at, span.size, MSG_DONTWAIT); });
      } else if (!to[i].empty() && (ended | (looks[n].revents & POLLOUT))) {
        Advance(to[i], i, [&](const Span& span) {
          return send(socket, span.at, span.size, MSG_DONTWAIT | MSG_NOSIGNAL);
        });
      }
    }
  }
}

void Communicator::Close() {
  for (int& socket : sockets_) {
    if (socket >= 0) close(std::exchange(socket, -1));
  }
}

}  // namespace emulated
