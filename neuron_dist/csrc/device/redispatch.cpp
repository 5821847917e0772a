#include "device/redispatch.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include "device/alias.h"
#include "device/allocator.h"
#include "device/generator.h"
#include "device/heap.h"
#include "device/op_plan.h"
#include "device/streams.h"
#include "device/watch.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

// Kinds of tensors that have kernels of their own.
constexpr DispatchKeySet kSpecial{
    DispatchKey::Quantized, DispatchKey::Sparse, DispatchKey::SparseCsr, DispatchKey::NestedTensor};

bool on_neuron(const Tensor& t) {
  return t.device().type() == kNeuron;
}

// One neuron tensor among the arguments and the CPU tensor that stands in for it.
struct Substitute {
  size_t argument;
  Tensor original;
  Tensor alias;
  bool mutated;
};

class Call {
 public:
  Call(const c10::OperatorHandle& op, const OpPlan& plan, DispatchKeySet keys, Stack& stack)
      : op_(op), plan_(plan), stack_(stack), first_(stack.size() - plan.arguments) {
    run_backward_in_this_thread();
    if (C10_UNLIKELY(keys.has_any(kSpecial))) {
      cpu_keys_ = cpu_keys_ | (keys & kSpecial);
    }
  }

  void run() {
    for (size_t i = 0; i < plan_.arguments; ++i) {
      substitute(i);
    }
    check_devices();
    if (device_.index() < 0) {
      device_ = checked_device(-1);
    }
    if (C10_UNLIKELY(plan_.flops != nullptr)) {
      flops_ = plan_.flops(&argument(0));
    }
    if (plan_.copies) {
      host_waits_ = !argument(2).toBool();
    }
    const AllocatingFor name(plan_.name);
    if (plan_.drawn != nullptr) {
      run_drawn();
    } else if (plan_.generator >= 0) {
      run_with_generator();
    } else if (plan_.draws) {
      run_with_default_generator();
    } else if (C10_UNLIKELY(plan_.widens_integers) && at::isIntegralType(argument(0).toTensor().scalar_type(), false)) {
      run_in_double();
    } else {
      run_kernel();
    }
    if (C10_UNLIKELY(watching()) && plan_.computes) {
      watch();
    }
    give_back();
    if (!plan_.free) {
      charge();
    }
    for (auto& s : substitutes_) {
      keep_alias(s.original, std::move(s.alias));
    }
  }

 private:
  IValue& argument(size_t i) {
    return stack_[first_ + i];
  }

  void substitute(size_t i) {
    IValue& value = argument(i);
    if (value.isTensor()) {
      const Tensor& t = value.toTensor();
      if (t.defined()) {
        if (on_neuron(t)) {
          value = stand_in(i, std::move(value).toTensor());
        } else {
          note_foreign(i, t);
        }
      }
    } else if (value.isTensorList()) {
      value = each_in(std::move(value).toTensorList(), [&](Tensor t) { return in_list(i, std::move(t)); });
    } else if (value.isOptionalTensorList()) {
      value = each_in(std::move(value).toOptionalTensorList(), [&](std::optional<Tensor> t) {
        return t.has_value() ? in_list(i, std::move(*t)) : t;
      });
    } else if (value.isDevice()) {
      const c10::Device asked = value.toDevice();
      if (asked.type() == kNeuron) {
        device_ = checked_device(asked.index());
        value = c10::Device(c10::DeviceType::CPU);
      } else {
        leaves_ = true; // a copy to the CPU, of a kind of tensor that has its own operators for that
      }
    }
  }

  // The list with `change` applied to each element; in place where nobody else has the list.
  template <typename T, typename Change>
  static c10::List<T> each_in(c10::List<T> list, Change change) {
    if (list.use_count() > 1) {
      list = list.copy();
    }
    for (size_t n = 0; n < list.size(); ++n) {
      list.set(n, change(list.extract(n)));
    }
    return list;
  }

  Tensor in_list(size_t i, Tensor t) {
    if (t.defined()) {
      if (on_neuron(t)) {
        return stand_in(i, std::move(t));
      }
      note_foreign(i, t);
    }
    return t;
  }

  Tensor stand_in(size_t i, Tensor original) {
    const bool mutated = plan_.mutated[i];
    if (device_.index() < 0) {
      device_ = original.device();
    } else if (C10_UNLIKELY(device_ != original.device() && other_.index() < 0)) {
      other_ = original.device();
      mixed_ = true;
    }
    Tensor alias = spare_alias_of(original);
    if (!alias.defined()) {
      for (auto& s : substitutes_) {
        if (s.original.is_same(original)) { // x.add_(x): the kernel shall see one tensor, too
          s.mutated |= mutated;
          return s.alias;
        }
      }
      alias = cpu_alias_of(original);
    }
    if (C10_UNLIKELY(plan_.asks_for_grad) && original.requires_grad()) {
      auto meta = c10::impl::GetAutogradMetaFactory()->make();
      meta->set_requires_grad(true, alias.unsafeGetTensorImpl());
      alias.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
    }
    substitutes_.push_back({i, std::move(original), alias, mutated});
    return alias;
  }

  // CPU scalars mix with device tensors as they do with CUDA; anything else does not.
  void note_foreign(size_t i, const Tensor& t) {
    if (t.device().is_cpu() && !plan_.mutated[i] &&
        (t.dim() == 0 || static_cast<int>(i) == plan_.cpu_argument)) {
      return;
    }
    mixed_ = true;
    other_ = t.device();
  }

  void check_devices() const {
    if (C10_LIKELY(!mixed_) || (plan_.takes_cpu && (other_.is_cpu() || other_.type() == kNeuron))) {
      return;
    }
    TORCH_CHECK(
        substitutes_.empty(),
        "Expected all tensors to be on the same device, but found at least two devices, ",
        substitutes_.front().original.device(), " and ", other_, "! (", op_.operator_name(), ")");
  }

  void run_kernel() {
    std::optional<AllocateOnDevice> allocate;
    if (C10_LIKELY(!leaves_)) {
      allocate.emplace(device_.index());
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op_.redispatchBoxed(cpu_keys_, &stack_);
  }

  void run_in_double() {
    AllocateOnDevice allocate(device_.index());
    const auto dtype = argument(0).toTensor().scalar_type();
    argument(0) = argument(0).toTensor().to(at::kDouble);
    run_kernel();
    stack_.back() = stack_.back().toTensor().to(dtype);
  }

  // The one that the call names, or the device's.
  at::Generator generator_of_call() {
    if (plan_.generator < 0 || argument(static_cast<size_t>(plan_.generator)).isNone()) {
      return default_generator(device_.index());
    }
    at::Generator generator = argument(static_cast<size_t>(plan_.generator)).toGenerator();
    TORCH_CHECK(
        generator.device().type() == kNeuron, "Expected a 'neuron' device type for generator but found '",
        generator.device().type(), "'");
    return generator;
  }

  void run_drawn() {
    at::Generator generator = generator_of_call();
    auto* state = generator.get<NeuronGenerator>();
    std::lock_guard<std::mutex> lock(generator.mutex());
    {
      AllocateOnDevice allocate(device_.index());
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      plan_.drawn(stack_, {state->current_seed(), state->get_offset()});
    }
    state->advance(values_drawn());
  }

  void run_with_generator() {
    at::Generator generator = generator_of_call();
    IValue& value = argument(static_cast<size_t>(plan_.generator));
    auto* state = generator.get<NeuronGenerator>();
    std::lock_guard<std::mutex> lock(generator.mutex());
    thread_local at::Generator cpu = at::detail::createCPUGenerator();
    state->prepare(*cpu.get<at::CPUGeneratorImpl>(), one_word_a_value());
    value = cpu;
    run_kernel();
    state->advance(values_drawn());
  }

  // Whether the CPU's kernel draws exactly one 32-bit word for each value. Its vectorized normal_ draws sixteen more
  // for a rest that is shorter, its scalar one takes pairs of doubles.
  bool one_word_a_value() const {
    if (plan_.fill == OpPlan::Fill::kNone || substitutes_.empty()) {
      return false;
    }
    const Tensor& t = substitutes_[0].alias;
    if (t.layout() != at::kStrided) {
      return false; // what is drawn are the values of a sparse tensor, by a call of their own
    }
    const auto dtype = t.scalar_type();
    const bool narrow = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
    return narrow && (plan_.fill == OpPlan::Fill::kUniform || (t.numel() % 16 == 0 && t.is_contiguous()));
  }

  // The kernel draws from the CPU's default generator; it is put back as it was.
  void run_with_default_generator() {
    at::Generator generator = default_generator(device_.index());
    auto* state = generator.get<NeuronGenerator>();
    std::lock_guard<std::mutex> lock(generator.mutex());
    at::Generator cpu = at::detail::getDefaultCPUGenerator();
    struct Restore {
      at::CPUGeneratorImpl& generator;
      std::shared_ptr<at::CPUGeneratorImpl> saved;
      ~Restore() {
        std::lock_guard<std::mutex> lock(generator.mutex_);
        generator.set_engine(saved->engine());
        generator.set_next_float_normal_sample(saved->next_float_normal_sample());
        generator.set_next_double_normal_sample(saved->next_double_normal_sample());
      }
    };
    auto* impl = cpu.get<at::CPUGeneratorImpl>();
    {
      std::unique_lock<std::mutex> cpu_lock(impl->mutex_);
      Restore restore{*impl, impl->clone()};
      impl->set_current_seed(state->operator_seed());
      cpu_lock.unlock();
      run_kernel();
    }
    state->advance(values_drawn());
  }

  // What a tensor's elements take in memory: an expanded one no more than it has.
  static uint64_t bytes_of(const Tensor& t) {
    if (C10_UNLIKELY(t.layout() != at::kStrided)) {
      return t.is_sparse() ? t._values().nbytes() + t._indices().nbytes() : 0;
    }
    const auto* impl = t.unsafeGetTensorImpl();
    const auto bytes = static_cast<uint64_t>(impl->numel()) * impl->itemsize();
    return std::min<uint64_t>(bytes, impl->unsafe_storage().unsafeGetStorageImpl()->nbytes());
  }

  // Simulated time: every input is read from HBM and every output written to it, once.
  void charge() {
    auto& clock = SimulatedClock::get();
    if (C10_UNLIKELY(!clock.enabled())) {
      return;
    }
    uint64_t bytes = 0;
    uint64_t picked_from = 0; // size of the argument of which an index names some elements
    uint64_t picked_times = 0;
    auto dtype = flops_.dtype;
    bool first = flops_.count == 0;
    for (const auto& s : substitutes_) {
      const uint64_t own = bytes_of(s.alias);
      const uint64_t times = (plan_.only_written[s.argument] ? 0U : 1U) + (s.mutated ? 1U : 0U);
      if (C10_UNLIKELY(plan_.picks && s.argument == 0)) {
        picked_from = own;
        picked_times = times;
      } else {
        bytes += times * own;
      }
      if (first) {
        dtype = s.alias.scalar_type();
        first = false;
      }
    }
    for (size_t r = 0; r < plan_.results; ++r) {
      const IValue& value = stack_[stack_.size() - plan_.results + r];
      if (plan_.result_of[r] >= 0) {
        continue;
      }
      if (value.isTensor() && value.toTensor().defined()) {
        bytes += bytes_of(value.toTensor());
        dtype = first ? value.toTensor().scalar_type() : dtype;
        first = false;
      } else if (value.isTensorList()) {
        for (const Tensor& t : value.toTensorVector()) {
          bytes += t.defined() ? bytes_of(t) : 0;
        }
      }
    }
    // As much as it brought or took away.
    bytes += picked_times * std::min(picked_from, bytes);
    auto moves = Moves::kInHbm;
    if (plan_.copies && substitutes_.size() == 1) {
      moves = substitutes_[0].mutated ? Moves::kToDevice : Moves::kFromDevice;
    }
    const c10::Stream stream = current_stream(device_.index());
    const Heap* heap = Heap::find(device_.index());
    clock.charge(stream, plan_.name, dtype, flops_.count, bytes, moves, heap == nullptr ? 0 : heap->live_bytes());
    if ((plan_.copies && moves != Moves::kInHbm && host_waits_) || plan_.host_waits) {
      clock.host_waits_for(stream);
    }
  }

  // Tells the fidelity profile, once an operator, what the real device would do otherwise.
  void watch() {
    const auto told = plan_.told.load(std::memory_order_relaxed);
    uint8_t seen = plan_.may_fall_back ? kSeenOperator : 0;
    auto dtype = at::ScalarType::Undefined;
    const auto look_at = [&](const Tensor& t, bool result) {
      if (!t.defined() || t.layout() != at::kStrided || t.dim() == 0 || t._is_zerotensor()) {
        return;
      }
      const auto type = t.scalar_type();
      if (type == at::kDouble) {
        seen |= kSeenDouble;
        dtype = type;
      } else if (result && type == at::kLong && (told & kSeenOverflow) == 0 && beyond_32_bits(t)) {
        seen |= kSeenOverflow;
      }
      dtype = dtype == at::ScalarType::Undefined ? type : dtype;
    };
    for (const auto& s : substitutes_) {
      look_at(s.alias, s.mutated);
    }
    for (size_t r = 0; r < plan_.results; ++r) {
      const IValue& value = stack_[stack_.size() - plan_.results + r];
      if (value.isTensor() && plan_.result_of[r] < 0) {
        look_at(value.toTensor(), true);
      }
    }
    if (C10_UNLIKELY((seen & ~told) != 0) && tell_watcher(op_.operator_name().name, dtype, seen & ~told)) {
      plan_.told.fetch_or(seen); // not where it was refused: that is said each time
    }
  }

  uint64_t values_drawn() const {
    int64_t most = 0;
    for (const auto& s : substitutes_) {
      most = std::max(most, s.alias.numel());
    }
    for (size_t r = 0; r < plan_.results; ++r) {
      const IValue& value = stack_[first_ + r];
      if (value.isTensor() && value.toTensor().defined()) {
        most = std::max(most, value.toTensor().numel());
      }
    }
    return static_cast<uint64_t>(most);
  }

  // Results go back to the device: the tensors that the caller passed, views of them, or new ones.
  void give_back() {
    for (auto& s : substitutes_) {
      if (s.mutated) {
        sync_with_alias(s.original, s.alias);
      }
    }
    for (size_t r = 0; r < plan_.results; ++r) {
      IValue& value = stack_[stack_.size() - plan_.results + r];
      if (value.isTensor()) {
        const Tensor& t = value.toTensor();
        if (!t.defined()) {
          continue;
        }
        if (C10_UNLIKELY(plan_.cpu_result[r])) {
          value = t.clone();
        } else {
          value = to_device(t, plan_.result_of[r]);
        }
      } else if (value.isTensorList()) {
        value = each_in(std::move(value).toTensorList(), [&](const Tensor& t) {
          return t.defined() ? to_device(t, -1) : t;
        });
      }
    }
  }

  Tensor to_device(const Tensor& t, int mutated_argument) {
    if (mutated_argument < 0 && !leaves_ && is_fresh(t)) {
      return adopt_tensor(t, device_);
    }
    for (const auto& s : substitutes_) {
      if ((mutated_argument >= 0 && s.argument == static_cast<size_t>(mutated_argument)) ||
          s.alias.is_same(t)) {
        return s.original;
      }
    }
    if (!t.device().is_cpu() || mutated_argument >= 0 || leaves_) {
      return t; // an argument that was not on the device: copies to the CPU
    }
    return adopt_tensor(t, device_);
  }

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  Stack& stack_;
  const size_t first_;
  DispatchKeySet cpu_keys_{DispatchKey::CPU};
  c10::SmallVector<Substitute, 4> substitutes_;
  c10::Device device_{kNeuron, -1};
  c10::Device other_{kNeuron, -1};
  bool mixed_ = false;
  bool leaves_ = false; // results go to the device that an argument names
  Flops flops_;
  bool host_waits_ = false;
};

// The keys of one kind of tensor on both devices.
struct TensorKind {
  DispatchKey cpu;
  DispatchKey neuron;
  const char* name; // in messages
};

constexpr TensorKind kKinds[] = {
    {DispatchKey::NestedTensorCPU, DispatchKey::NestedTensorPrivateUse1, "nested "},
    {DispatchKey::SparseCsrCPU, DispatchKey::SparseCsrPrivateUse1, "sparse compressed "},
    {DispatchKey::SparseCPU, DispatchKey::SparsePrivateUse1, "sparse "},
    {DispatchKey::QuantizedCPU, DispatchKey::QuantizedPrivateUse1, "quantized "},
    {DispatchKey::CPU, DispatchKey::PrivateUse1, ""}};

// One operator's kernel. The plan is made at its first call.
struct Redispatch final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    std::call_once(once_, [&] { plan_ = std::make_unique<OpPlan>(op); });
    Call(op, *plan_, keys, *stack).run();
  }

 private:
  std::once_flag once_;
  std::unique_ptr<OpPlan> plan_;
};

// Operators that were not there when we registered: kernels of other libraries, found when called.
struct Fallback final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    for (const TensorKind& kind : kKinds) { // the first that the call has is the one that dispatches
      if (keys.has(kind.neuron)) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            op.hasComputedKernelForDispatchKey(kind.cpu), "neuron: no ", kind.name,
            "CPU kernel for ", op.operator_name(),
            ", so it cannot run on device neuron. Move its tensors with .cpu(), or register a kernel "
            "with torch.library.impl(\"",
            op.operator_name(), "\", \"", kind.neuron, "\").");
        break;
      }
    }
    redispatch(op, keys, stack);
  }
};

} // namespace

void redispatch(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const OpPlan plan(op);
  Call(op, plan, keys, *stack).run();
}

void register_redispatch() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Leaked: kernels stay registered until the process ends.
  auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.compare(0, 6, "aten::") != 0) {
      continue;
    }
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value()) {
      continue;
    }
    for (const TensorKind& kind : kKinds) {
      const bool whole = runs_whole(name, kind.cpu);
      if (!op->hasKernelForDispatchKey(kind.neuron) &&
          (op->hasKernelForDispatchKey(kind.cpu) || whole)) {
        handles->push_back(dispatcher.registerImpl(
            name, kind.neuron,
            c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Redispatch>()),
            std::nullopt, nullptr, "neuron"));
      }
    }
  }
  for (const TensorKind& kind : kKinds) {
    handles->push_back(dispatcher.registerFallback(
        kind.neuron, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Fallback>()),
        "neuron"));
  }
}

} // namespace neuron
