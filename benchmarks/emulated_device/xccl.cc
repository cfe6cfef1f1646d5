#include "xccl.h"

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "collective.h"
#include "communicator.h"
#include "device.h"

namespace emulated {
namespace {

Communicator& CommOf(C_CCLComm comm) { return *reinterpret_cast<Communicator*>(comm); }

// ------------------------------------------------------------------ communicators

C_Status TellIdSize(size_t* size) {
  *size = Communicator::kIdSize;
  return C_SUCCESS;
}

C_Status MakeId(C_CCLRootId* id) {
  std::memcpy(id->data, Communicator::NewId().data(), Communicator::kIdSize);
  return C_SUCCESS;
}

C_Status CreateComm(size_t size, C_CCLRootId* id, size_t rank, C_CCLComm* comm) {
  Device& device = *Devices()[CurrentDevice()];
  const std::string name(static_cast<char*>(id->data), id->sz);
  try {
    *comm = reinterpret_cast<C_CCLComm>(
        new Communicator(name, rank, size, device.to_peers, device.peer_bandwidth));
  } catch (const PeerLost& error) {
    std::fprintf(stderr, "emulated device: no communicator: %s\n", error.what());
    return C_INTERNAL_ERROR;
  }
  return C_SUCCESS;
}

C_Status DestroyComm(C_CCLComm comm) {
  delete &CommOf(comm);
  return C_SUCCESS;
}

// Paddle has set aside 128 bytes.
C_Status TellName(C_CCLComm comm, char* name) {
  std::snprintf(name, 128, "emulated-%p", static_cast<void*>(comm));
  return C_SUCCESS;
}

// ------------------------------------------------------------------ types

// Returns the bytes of an element that is moved, 0 for a type that Paddle may add.
size_t SizeOf(C_DataType type) {
  switch (type) {
    case BOOL:
    case UINT8:
    case INT8:
      return 1;
    case UINT16:
    case INT16:
    case FLOAT16:
    case BFLOAT16:
      return 2;
    case UINT32:
    case INT32:
    case FLOAT32:
      return 4;
    case UINT64:
    case INT64:
    case FLOAT64:
    case COMPLEX64:
      return 8;
    case COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

// Returns how elements are combined, nothing for a type that these devices do not add up.
std::optional<Rule> RuleOf(C_DataType type, C_CCLReduceOp op) {
  static const std::map<C_DataType, Element> elements = {{INT32, Element::kInt32},
                                                         {INT64, Element::kInt64},
                                                         {FLOAT32, Element::kFloat32},
                                                         {FLOAT64, Element::kFloat64}};
  static const std::map<C_CCLReduceOp, Reduction> reductions = {{SUM, Reduction::kSum},
                                                                {AVG, Reduction::kMean},
                                                                {MAX, Reduction::kMax},
                                                                {MIN, Reduction::kMin},
                                                                {PRODUCT, Reduction::kProduct}};
  if (elements.count(type) == 0 || reductions.count(op) == 0) return {};
  return Rule{elements.at(type), reductions.at(op)};
}

// ------------------------------------------------------------------ collectives

C_Status AddAllReduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op,
                      C_CCLComm comm, C_Stream stream) {
  const auto rule = RuleOf(type, op);
  if (!rule) return C_ERROR;
  StreamOf(stream).Add(
      [=, size = count * SizeOf(type)] { Reduce(CommOf(comm), from, to, size, *rule); });
  return C_SUCCESS;
}

C_Status AddReduce(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op,
                   size_t root, C_CCLComm comm, C_Stream stream) {
  const auto rule = RuleOf(type, op);
  if (!rule) return C_ERROR;
  StreamOf(stream).Add(
      [=, size = count * SizeOf(type)] { Reduce(CommOf(comm), from, to, size, *rule, root); });
  return C_SUCCESS;
}

C_Status AddReduceScatter(void* from, void* to, size_t count, C_DataType type, C_CCLReduceOp op,
                          C_CCLComm comm, C_Stream stream) {
  const auto rule = RuleOf(type, op);
  if (!rule) return C_ERROR;
  StreamOf(stream).Add(
      [=, size = count * SizeOf(type)] { ReduceScatter(CommOf(comm), from, to, size, *rule); });
  return C_SUCCESS;
}

C_Status AddAllGather(void* from, void* to, size_t count, C_DataType type, C_CCLComm comm,
                      C_Stream stream) {
  StreamOf(stream).Add(
      [=, size = count * SizeOf(type)] { AllGather(CommOf(comm), from, to, size); });
  return C_SUCCESS;
}

C_Status AddBroadcast(void* at, size_t count, C_DataType type, size_t root, C_CCLComm comm,
                      C_Stream stream) {
  StreamOf(stream).Add(
      [=, size = count * SizeOf(type)] { Broadcast(CommOf(comm), at, size, root); });
  return C_SUCCESS;
}

// ------------------------------------------------------------------ from one to one

// What a thread sends and receives between group_start and group_end is exchanged
// at once, or two ranks that first send to each other would wait for ever.
struct Group {
  int depth = 0;
  std::map<std::pair<C_CCLComm, C_Stream>, std::pair<Lanes, Lanes>> exchanges;

  void Add(C_CCLComm comm, C_Stream stream, size_t peer, Span span, bool is_sent) {
    auto& [to, from] = exchanges[{comm, stream}];
    to.resize(CommOf(comm).size());
    from.resize(CommOf(comm).size());
    (is_sent ? to : from)[peer].push_back(span);
    if (depth == 0) Launch();
  }

  void Launch() {
    for (auto& [where, lanes] : exchanges) {
      StreamOf(where.second).Add([comm = where.first, lanes = std::move(lanes)] {
        CommOf(comm).Exchange(lanes.first, lanes.second);
      });
    }
    exchanges.clear();
  }
};

thread_local Group group;

C_Status StartGroup() {
  ++group.depth;
  return C_SUCCESS;
}

C_Status EndGroup() {
  if (--group.depth == 0) group.Launch();
  return C_SUCCESS;
}

C_Status AddSend(void* at, size_t count, C_DataType type, size_t peer, C_CCLComm comm,
                 C_Stream stream) {
  group.Add(comm, stream, peer, {static_cast<char*>(at), count * SizeOf(type)}, true);
  return C_SUCCESS;
}

C_Status AddRecv(void* at, size_t count, C_DataType type, size_t peer, C_CCLComm comm,
                 C_Stream stream) {
  group.Add(comm, stream, peer, {static_cast<char*>(at), count * SizeOf(type)}, false);
  return C_SUCCESS;
}

C_Status AddAllToAll(const void** from, const size_t* from_count, const C_DataType* from_type,
                     void** to, const size_t* to_count, const C_DataType* to_type, size_t,
                     size_t size, C_CCLComm comm, C_Stream stream) {
  StartGroup();
  for (size_t i = 0; i < size; ++i) {
    AddSend(const_cast<void*>(from[i]), from_count[i], from_type[i], i, comm, stream);
    AddRecv(to[i], to_count[i], to_type[i], i, comm, stream);
  }
  return EndGroup();
}

}  // namespace

void FillCollectives(C_DeviceInterface* device) {
  device->xccl_get_comm_name = TellName;
  device->xccl_get_unique_id_size = TellIdSize;
  device->xccl_get_unique_id = MakeId;
  device->xccl_comm_init_rank = CreateComm;
  device->xccl_destroy_comm = DestroyComm;
  device->xccl_all_reduce = AddAllReduce;
  device->xccl_broadcast = AddBroadcast;
  device->xccl_reduce = AddReduce;
  device->xccl_all_gather = AddAllGather;
  device->xccl_reduce_scatter = AddReduceScatter;
  device->xccl_group_start = StartGroup;
  device->xccl_group_end = EndGroup;
  device->xccl_send = AddSend;
  device->xccl_recv = AddRecv;
  device->xccl_all_to_all = AddAllToAll;
}

}  // namespace emulated
