// The collectives of Paddle's device_ext.h, which it calls xccl, over Communicator and Stream.
#ifndef EMULATED_XCCL_H_
#define EMULATED_XCCL_H_

#include "paddle/phi/backends/device_ext.h"

namespace emulated {

// Fills in the xccl_ functions. Each puts work into the stream that it is given
// and returns; as NCCL's, it takes part in the order of that stream.
void FillCollectives(C_DeviceInterface* device);

}  // namespace emulated

#endif  // EMULATED_XCCL_H_
