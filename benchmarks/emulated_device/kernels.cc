// The kernels of the device: what a step launches around its model.
//
// A row is a name of Paddle's with the function whose signature its kernels have.
// What is not here, Paddle runs in the calling thread, on copies.

#include <cmath>
#include <cstring>
#include <limits>

#include "launch.h"
#include "paddle/phi/kernels/activation_kernel.h"
#include "paddle/phi/kernels/assign_kernel.h"
#include "paddle/phi/kernels/cast_kernel.h"
#include "paddle/phi/kernels/full_kernel.h"
#include "paddle/phi/kernels/isfinite_kernel.h"
#include "paddle/phi/kernels/mean_all_grad_kernel.h"
#include "paddle/phi/kernels/mean_all_kernel.h"
#include "paddle/phi/kernels/reduce_all_kernel.h"
#include "paddle/phi/kernels/scale_kernel.h"
#include "paddle/phi/kernels/sigmoid_cross_entropy_with_logits_grad_kernel.h"
#include "paddle/phi/kernels/sigmoid_cross_entropy_with_logits_kernel.h"
#include "paddle/phi/kernels/stack_kernel.h"

namespace emulated {
namespace {

// The kernels of a name, for each type of elements; for one of them perhaps a function of this
// file.
template <class Name, class Signature, phi::DataType... kTypes>
struct Kernels {
  using Function = typename Launched<Name, phi::DataType::FLOAT32, Signature>::Function;

  Kernels(phi::DataType own_type, Function own) {
    (Launched<Name, kTypes, Signature>::Register(kTypes == own_type ? own : nullptr), ...);
  }
};

#define EMULATED_OWN_KERNEL(name, type, own, ...)                                               \
  struct Name_##name {                                                                          \
    static constexpr const char* kName = #name;                                                 \
  };                                                                                            \
  const Kernels<Name_##name, decltype(&__VA_ARGS__), phi::DataType::BOOL, phi::DataType::INT32, \
                phi::DataType::INT64, phi::DataType::FLOAT32, phi::DataType::FLOAT64>           \
      kernels_##name(phi::DataType::type, own);

#define EMULATED_KERNEL(name, ...) EMULATED_OWN_KERNEL(name, UNDEFINED, nullptr, __VA_ARGS__)

using Cpu = phi::CPUContext;

// Whether gradients are finite is asked at the end of each step, and a device tells it in
// microseconds. The CPU's two kernels take 0.9 ms for 400,000 floats, these 0.1.

void IsFinite(const phi::DeviceContext&, const phi::DenseTensor& x, phi::DenseTensor* out) {
  const float* from = x.data<float>();
  bool* to = out->data<bool>();
  const int64_t size = x.numel();
  for (int64_t i = 0; i < size; ++i) {
    to[i] = std::fabs(from[i]) <= std::numeric_limits<float>::max();
  }
}

void All(const phi::DeviceContext& context, const phi::DenseTensor& x,
         const std::vector<int64_t>& axes, bool keeps_axes, phi::DenseTensor* out) {
  if (out->numel() == 1) {
    *out->data<bool>() = std::memchr(x.data(), 0, x.numel()) == nullptr;
    return;
  }
  const phi::KernelKey key(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, phi::DataType::BOOL);
  const phi::Kernel& on_cpu = phi::KernelFactory::Instance().SelectKernel("all", key);
  on_cpu.GetVariadicKernelFn<decltype(&All)>()(context, x, axes, keeps_axes, out);
}

EMULATED_OWN_KERNEL(all, BOOL, All, phi::AllKernel<bool, Cpu>)
EMULATED_KERNEL(assign, phi::AssignKernel<Cpu>)
EMULATED_KERNEL(cast, phi::CastKernel<float, Cpu>)
EMULATED_KERNEL(full, phi::FullKernel<float, Cpu>)
EMULATED_KERNEL(full_like, phi::FullLikeKernel<float, Cpu>)
EMULATED_OWN_KERNEL(isfinite, FLOAT32, IsFinite, phi::IsfiniteKernel<float, Cpu>)
EMULATED_KERNEL(mean_all, phi::MeanAllKernel<float, Cpu>)
EMULATED_KERNEL(mean_all_grad, phi::MeanAllGradKernel<float, Cpu>)
EMULATED_KERNEL(scale, phi::ScaleKernel<float, Cpu>)
EMULATED_KERNEL(sigmoid, phi::SigmoidKernel<float, Cpu>)
EMULATED_KERNEL(sigmoid_cross_entropy_with_logits,
                phi::SigmoidCrossEntropyWithLogitsKernel<float, Cpu>)
EMULATED_KERNEL(sigmoid_cross_entropy_with_logits_grad,
                phi::SigmoidCrossEntropyWithLogitsGradKernel<float, Cpu>)
EMULATED_KERNEL(stack, phi::StackKernel<float, Cpu>)

}  // namespace
}  // namespace emulated
