// The kernels of the device: what a step launches around its model.
//
// A row is a name of Paddle's with the function whose signature its kernels have.
// What is not here, Paddle runs in the calling thread, on copies.

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

template <class Name, class Signature>
bool Register() {
  Launched<Name, phi::DataType::BOOL, Signature>::Register();
  Launched<Name, phi::DataType::INT32, Signature>::Register();
  Launched<Name, phi::DataType::INT64, Signature>::Register();
  Launched<Name, phi::DataType::FLOAT32, Signature>::Register();
  Launched<Name, phi::DataType::FLOAT64, Signature>::Register();
  return true;
}

#define EMULATED_KERNEL(name, ...)              \
  struct Name_##name {                          \
    static constexpr const char* kName = #name; \
  };                                            \
  [[maybe_unused]] const bool has_##name = Register<Name_##name, decltype(&__VA_ARGS__)>();

using Cpu = phi::CPUContext;

EMULATED_KERNEL(all, phi::AllKernel<bool, Cpu>)
EMULATED_KERNEL(assign, phi::AssignKernel<Cpu>)
EMULATED_KERNEL(cast, phi::CastKernel<float, Cpu>)
EMULATED_KERNEL(full, phi::FullKernel<float, Cpu>)
EMULATED_KERNEL(full_like, phi::FullLikeKernel<float, Cpu>)
EMULATED_KERNEL(isfinite, phi::IsfiniteKernel<float, Cpu>)
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
