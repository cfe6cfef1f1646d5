// Launched: a kernel of the device, which is the CPU's, run by a stream.
//
// A launch allocates the outputs and gives the stream the kernel to run, as that
// of a real device does: it returns at once, and the order of the stream is what
// makes the inputs be there. Device memory is the host's, so the CPU's kernel can
// run on it; it is told that the tensors are the CPU's.
#ifndef EMULATED_LAUNCH_H_
#define EMULATED_LAUNCH_H_

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/core/kernel_registry.h"
#include "stream.h"

namespace emulated {

// Returns a tensor of the CPU in the memory of one of the device. It does not keep
// that memory: who frees it early would do so on a real device, too.
inline phi::DenseTensor OnHost(const phi::DenseTensor& tensor) {
  if (tensor.Holder() == nullptr) return phi::DenseTensor();
  const auto memory = std::make_shared<phi::Allocation>(tensor.Holder()->ptr(),
                                                        tensor.Holder()->size(), phi::CPUPlace());
  return phi::DenseTensor(memory, tensor.meta());
}

// An argument of a launch as the stream has it later: a number, a shape, a name.
template <class Argument>
class Held {
 public:
  Held(const phi::CustomContext&, const Argument& argument) : argument_(argument) {}
  const Argument& get() const { return argument_; }

 private:
  const std::decay_t<Argument> argument_;
};

// An input.
template <>
class Held<const phi::DenseTensor&> {
 public:
  Held(const phi::CustomContext&, const phi::DenseTensor& input) : input_(OnHost(input)) {}
  const phi::DenseTensor& get() const { return input_; }

 private:
  const phi::DenseTensor input_;
};

// An input that a kernel can do without.
template <>
class Held<const paddle::optional<phi::DenseTensor>&> {
 public:
  Held(const phi::CustomContext&, const paddle::optional<phi::DenseTensor>& input) {
    if (input) input_ = OnHost(*input);
  }
  const paddle::optional<phi::DenseTensor>& get() const { return input_; }

 private:
  paddle::optional<phi::DenseTensor> input_;
};

// Any number of inputs.
template <>
class Held<const std::vector<const phi::DenseTensor*>&> {
 public:
  Held(const phi::CustomContext&, const std::vector<const phi::DenseTensor*>& inputs) {
    for (const phi::DenseTensor* input : inputs) inputs_.push_back(OnHost(*input));
  }
  std::vector<const phi::DenseTensor*> get() const {
    std::vector<const phi::DenseTensor*> inputs;
    for (const phi::DenseTensor& input : inputs_) inputs.push_back(&input);
    return inputs;
  }

 private:
  std::vector<phi::DenseTensor> inputs_;
};

// An output. Paddle has told its shape and type; its memory is taken now.
template <>
class Held<phi::DenseTensor*> {
 public:
  Held(const phi::CustomContext& context, phi::DenseTensor* output) {
    if (output == nullptr) return;  // nobody wants it
    context.Alloc(output, output->dtype());
    output_ = OnHost(*output);
    is_wanted_ = true;
  }
  phi::DenseTensor* get() { return is_wanted_ ? &output_ : nullptr; }

 private:
  phi::DenseTensor output_;
  bool is_wanted_ = false;
};

// The kernel of a name, a type of elements and a signature.
template <class Name, phi::DataType kType, class Signature>
class Launched;

template <class Name, phi::DataType kType, class... Arguments>
class Launched<Name, kType, void (*)(const phi::CPUContext&, Arguments...)> {
 public:
  using Function = void (*)(const phi::DeviceContext&, Arguments...);

  // Makes it Paddle's kernel for the device, if the CPU has one of this type. The
  // stream runs that one, or `own`, which does the same.
  static void Register(Function own = nullptr) {
    const auto& of_name = phi::KernelFactory::Instance().kernels()[Name::kName];
    const auto found = of_name.find({phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, kType});
    if (found == of_name.end()) return;
    run_ = own != nullptr ? own : found->second.template GetVariadicKernelFn<Function>();
    phi::Kernel kernel(PHI_KERNEL(Launch), PHI_VARIADIC_KERNEL(Launch));
    *kernel.mutable_args_def() = found->second.args_def();
    const phi::Backend backend = paddle::experimental::StringToBackend("emulated");
    for (auto& input : kernel.mutable_args_def()->input_defs()) Move(&input, backend);
    for (auto& output : kernel.mutable_args_def()->output_defs()) Move(&output, backend);
    phi::CustomKernelMap::Instance().RegisterCustomKernel(
        Name::kName, {backend, phi::DataLayout::ALL_LAYOUT, kType}, kernel);
  }

  static void Launch(const phi::CustomContext& context, Arguments... arguments) {
    std::tuple<Held<Arguments>...> held(Held<Arguments>(context, arguments)...);
    reinterpret_cast<Stream*>(context.stream())->Add([held = std::move(held)]() mutable {
      const auto* cpu = phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
      std::apply([cpu](auto&... each) { run_(*cpu, each.get()...); }, held);
    });
  }

 private:
  static void Move(phi::TensorArgDef* argument, phi::Backend backend) {
    if (argument->backend == phi::Backend::CPU) argument->SetBackend(backend);
  }

  static inline Function run_ = nullptr;
};

}  // namespace emulated

#endif  // EMULATED_LAUNCH_H_
