// The device as Paddle sees it: the functions of its device_ext.h, over Memory, Stream and Engine.
//
// What kernels.cc does not have, Paddle runs on the CPU: it brings the inputs to
// the host by synchronous copies, computes in the calling thread, and takes the
// outputs back the same way. A real device has none of these copies, so they take
// no time but their own. What takes the stated time is what a program asks for by
// itself: asynchronous copies between host and device or between devices, and
// `emulated_compute`, which stands for the kernels of a step.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "device.h"
#include "paddle/phi/backends/device_ext.h"
#include "settings.h"
#include "xccl.h"

namespace emulated {
namespace {

Event& EventOf(C_Event event) { return *reinterpret_cast<Event*>(event); }

// C_FAILED is "resource exhausted".
C_Status StatusOf(bool is_reached) { return is_reached ? C_SUCCESS : C_INTERNAL_ERROR; }

// ------------------------------------------------------------------ devices

C_Status Initialize() {
  const Settings settings = Settings::FromEnvironment();
  for (size_t i = 0; i < settings.num_devices; ++i) {
    Devices().push_back(std::make_unique<Device>(settings));
  }
  return C_SUCCESS;
}

C_Status Finalize() { return C_SUCCESS; }

C_Status InitDevice(const C_Device) { return C_SUCCESS; }

C_Status SetDevice(const C_Device device) {
  CurrentDevice() = device->id;
  return C_SUCCESS;
}

C_Status GetDevice(const C_Device device) {
  device->id = CurrentDevice();
  return C_SUCCESS;
}

C_Status CountDevices(size_t* count) {
  *count = Devices().size();
  return C_SUCCESS;
}

C_Status ListDevices(size_t* devices) {
  for (size_t i = 0; i < Devices().size(); ++i) devices[i] = i;
  return C_SUCCESS;
}

C_Status SynchronizeDevice(const C_Device device) {
  std::vector<Mark> marks;
  {
    std::lock_guard<std::mutex> lock(DeviceOf(device).mutex);
    for (Stream* stream : DeviceOf(device).streams) marks.push_back(stream->Record());
  }
  bool is_reached = true;
  for (const Mark& mark : marks) is_reached &= mark.Wait();
  return StatusOf(is_reached);
}

// ------------------------------------------------------------------ streams and events

C_Status CreateStream(const C_Device device, C_Stream* stream) {
  auto* made = new Stream;
  std::lock_guard<std::mutex> lock(DeviceOf(device).mutex);
  DeviceOf(device).streams.insert(made);
  *stream = reinterpret_cast<C_Stream>(made);
  return C_SUCCESS;
}

C_Status DestroyStream(const C_Device device, C_Stream stream) {
  {
    std::lock_guard<std::mutex> lock(DeviceOf(device).mutex);
    DeviceOf(device).streams.erase(&StreamOf(stream));
  }
  delete &StreamOf(stream);
  return C_SUCCESS;
}

C_Status QueryStream(const C_Device, C_Stream stream) {
  return StreamOf(stream).Record().IsOver() ? C_SUCCESS : C_FAILED;
}

C_Status SynchronizeStream(const C_Device, C_Stream stream) {
  return StatusOf(StreamOf(stream).Record().Wait());
}

C_Status AddCallback(const C_Device device, C_Stream stream, C_Callback callback, void* data) {
  StreamOf(stream).Add([id = device->id, stream, callback, data] {
    C_Device_st device{id};
    C_Status status = C_SUCCESS;
    callback(&device, stream, data, &status);
  });
  return C_SUCCESS;
}

C_Status CreateEvent(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(new Event);
  return C_SUCCESS;
}

C_Status DestroyEvent(const C_Device, C_Event event) {
  delete &EventOf(event);
  return C_SUCCESS;
}

C_Status RecordEvent(const C_Device, C_Stream stream, C_Event event) {
  EventOf(event).Set(StreamOf(stream).Record());
  return C_SUCCESS;
}

// What will never be reached is over, too, or who looks again and again would do so for ever.
C_Status QueryEvent(const C_Device, C_Event event) {
  return EventOf(event).mark().IsOver() ? C_SUCCESS : C_FAILED;
}

C_Status SynchronizeEvent(const C_Device, C_Event event) {
  return StatusOf(EventOf(event).mark().Wait());
}

C_Status StreamWaitEvent(const C_Device, C_Stream stream, C_Event event) {
  StreamOf(stream).Add([mark = EventOf(event).mark()] {
    if (!mark.Wait()) throw std::runtime_error("it waits for one that has failed");
  });
  return C_SUCCESS;
}

// ------------------------------------------------------------------ memory

C_Status Allocate(const C_Device device, void** at, size_t size) {
  *at = DeviceOf(device).memory.Allocate(size);
  return *at == nullptr ? C_FAILED : C_SUCCESS;
}

// Waits as cudaFree does: what was launched may still use the memory.
C_Status Free(const C_Device device, void* at, size_t size) {
  SynchronizeDevice(device);
  DeviceOf(device).memory.Free(at, size);
  return C_SUCCESS;
}

C_Status AllocateHost(const C_Device, void** at, size_t size) {
  *at = std::malloc(size);
  return *at == nullptr ? C_FAILED : C_SUCCESS;
}

C_Status FreeHost(const C_Device, void* at, size_t) {
  std::free(at);
  return C_SUCCESS;
}

C_Status TellMemory(const C_Device device, size_t* total, size_t* free) {
  const Memory& memory = DeviceOf(device).memory;
  *total = memory.limit();
  *free = memory.limit() - memory.used();
  return C_SUCCESS;
}

C_Status TellMinChunk(const C_Device, size_t* size) {
  *size = Memory::kAlignment;
  return C_SUCCESS;
}

C_Status Fill(const C_Device, void* at, unsigned char value, size_t size) {
  std::memset(at, value, size);
  return C_SUCCESS;
}

// ------------------------------------------------------------------ copies

// Paddle has synchronized the stream before it asks for this.
C_Status Copy(const C_Device, void* to, const void* from, size_t size) {
  std::memcpy(to, from, size);
  return C_SUCCESS;
}

// The source is read when the stated time is over, not before: a buffer that is
// written to too early shows in what arrives.
C_Status CopyFromHost(const C_Device device, C_Stream stream, void* to, const void* from,
                      size_t size) {
  StreamOf(stream).Add([&device = DeviceOf(device), to, from, size] {
    device.from_host.Use(device.CopyTime(size));
    std::memcpy(to, from, size);
  });
  return C_SUCCESS;
}

C_Status CopyToHost(const C_Device device, C_Stream stream, void* to, const void* from,
                    size_t size) {
  StreamOf(stream).Add([&device = DeviceOf(device), to, from, size] {
    device.to_host.Use(device.CopyTime(size));
    std::memcpy(to, from, size);
  });
  return C_SUCCESS;
}

C_Status CopyWithin(const C_Device, C_Stream stream, void* to, const void* from, size_t size) {
  StreamOf(stream).Add([to, from, size] { std::memcpy(to, from, size); });
  return C_SUCCESS;
}

}  // namespace
}  // namespace emulated

extern "C" {

// Adds to a stream of a device a kernel that takes `seconds` of its compute units.
void emulated_compute(int device, void* stream, double seconds) {
  emulated::Device& owner = *emulated::Devices()[device];
  emulated::StreamOf(reinterpret_cast<C_Stream>(stream)).Add([&owner, seconds] {
    owner.compute.Use(emulated::Seconds(seconds));
  });
}

void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("emulated");
  params->sub_device_type = const_cast<char*>("v1");

  C_DeviceInterface* device = params->interface;
  *device = {};
  device->size = sizeof(C_DeviceInterface);
  device->initialize = emulated::Initialize;
  device->finalize = emulated::Finalize;
  device->init_device = emulated::InitDevice;
  device->deinit_device = emulated::InitDevice;
  device->set_device = emulated::SetDevice;
  device->get_device = emulated::GetDevice;
  device->get_device_count = emulated::CountDevices;
  device->get_device_list = emulated::ListDevices;
  device->synchronize_device = emulated::SynchronizeDevice;

  device->create_stream = emulated::CreateStream;
  device->destroy_stream = emulated::DestroyStream;
  device->query_stream = emulated::QueryStream;
  device->synchronize_stream = emulated::SynchronizeStream;
  device->stream_add_callback = emulated::AddCallback;
  device->stream_wait_event = emulated::StreamWaitEvent;
  device->create_event = emulated::CreateEvent;
  device->destroy_event = emulated::DestroyEvent;
  device->record_event = emulated::RecordEvent;
  device->query_event = emulated::QueryEvent;
  device->synchronize_event = emulated::SynchronizeEvent;

  device->device_memory_allocate = emulated::Allocate;
  device->device_memory_deallocate = emulated::Free;
  device->host_memory_allocate = emulated::AllocateHost;
  device->host_memory_deallocate = emulated::FreeHost;
  device->device_memory_stats = emulated::TellMemory;
  device->device_min_chunk_size = emulated::TellMinChunk;
  device->device_memory_set = emulated::Fill;

  device->memory_copy_h2d = emulated::Copy;
  device->memory_copy_d2h = emulated::Copy;
  device->memory_copy_d2d = emulated::Copy;
  device->async_memory_copy_h2d = emulated::CopyFromHost;
  device->async_memory_copy_d2h = emulated::CopyToHost;
  device->async_memory_copy_d2d = emulated::CopyWithin;

  emulated::FillCollectives(device);
}

}  // extern "C"
