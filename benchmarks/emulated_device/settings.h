// What an emulated device is said to have.
#ifndef EMULATED_SETTINGS_H_
#define EMULATED_SETTINGS_H_

#include <cstddef>

namespace emulated {

struct Settings {
  size_t num_devices;     // EMULATED_DEVICES, by default 1
  size_t memory;          // EMULATED_MEMORY: bytes of each device, by default 1 GiB
  double bandwidth;       // EMULATED_BANDWIDTH: bytes a second each way between host and device, by
                          // default 12e9
  double peer_bandwidth;  // EMULATED_PEER_BANDWIDTH: bytes a second each way between this device
                          // and all others together, by default 12e9

  // Returns what the environment says. A value that is no number above 0 ends the process.
  static Settings FromEnvironment();
};

}  // namespace emulated

#endif  // EMULATED_SETTINGS_H_
