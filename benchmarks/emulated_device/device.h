// Device: what one emulated device consists of, and how Paddle's handles name its parts.
#ifndef EMULATED_DEVICE_H_
#define EMULATED_DEVICE_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "engine.h"
#include "memory.h"
#include "paddle/phi/backends/device_ext.h"
#include "settings.h"
#include "stream.h"

namespace emulated {

struct Device {
  explicit Device(const Settings& settings)
      : memory(settings.memory),
        bandwidth(settings.bandwidth),
        peer_bandwidth(settings.peer_bandwidth) {}

  Seconds CopyTime(size_t size) const { return Seconds(static_cast<double>(size) / bandwidth); }

  Memory memory;
  const double bandwidth, peer_bandwidth;
  Engine from_host, to_host, to_peers, compute;
  std::mutex mutex;
  std::set<Stream*> streams;  // guarded by mutex
};

// Never destroyed: Paddle destroys its streams when the process ends, after this library's statics.
inline std::vector<std::unique_ptr<Device>>& Devices() {
  static auto* const devices = new std::vector<std::unique_ptr<Device>>;
  return *devices;
}

// The number of the calling thread's device.
inline int& CurrentDevice() {
  thread_local int number = 0;
  return number;
}

inline Device& DeviceOf(const C_Device device) { return *Devices()[device->id]; }
inline Stream& StreamOf(C_Stream stream) { return *reinterpret_cast<Stream*>(stream); }

}  // namespace emulated

#endif  // EMULATED_DEVICE_H_
