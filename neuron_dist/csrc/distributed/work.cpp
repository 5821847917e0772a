#include "distributed/work.h"

#include <pybind11/pybind11.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "arena.h"
#include "device/streams.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

// Gives the GIL up, if this thread has it, while it waits for other ranks: their stacks and callbacks need it.
struct WithoutGil {
  std::optional<pybind11::gil_scoped_release> released;
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) {
      released.emplace();
    }
  }
};

constexpr std::chrono::milliseconds kSignalCheck{200};

std::atomic<uint32_t> last_number{0};

// Plain kernels only: neither autograd nor a Python mode of the thread that happens to drive may see it.
void plain_copy(const at::Tensor& to, const at::Tensor& from) {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_python(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  at::Tensor target = to;
  target.copy_(from);
}

} // namespace

void throw_failure(const Failure& failure) {
  TORCH_CHECK_WITH(DistBackendError, false, failure.message);
}

struct NeuronWork::Ending : Completion {
  explicit Ending(c10::intrusive_ptr<NeuronWork> work) : work(std::move(work)) {}
  void op_ended(const OpInfo& info, const Failure* failure) override {
    work->one_ended(&info, failure);
  }
  bool calls_back() const override {
    return work->calls_back();
  }
  c10::intrusive_ptr<NeuronWork> work;
};

// What follows on a work's end begins at that end in simulated time, whichever thread happens to drive and whatever
// it was doing.
class NeuronWork::AtItsEnd {
 public:
  AtItsEnd(const NeuronWork& work, c10::StreamId kind)
      : stream_(c10::Stream::UNSAFE, c10::Device(kNeuron, current_device()), kind + work.number_),
        times_before_(SimulatedClock::get().enter_callback(stream_, work.number_, work.end_ns_)),
        stream_before_(exchange_stream(stream_)) {}
  ~AtItsEnd() {
    SimulatedClock::leave_callback(times_before_);
    exchange_stream(stream_before_);
  }
  int64_t now_ns() const {
    return SimulatedClock::get().time_of(stream_);
  }

 private:
  const c10::Stream stream_;
  const SimulatedClock::ThreadTimes times_before_;
  const c10::Stream stream_before_;
};

NeuronWork::NeuronWork(
    int rank, c10d::OpType type, const char* title, Engine& engine, std::shared_ptr<Group> group)
    : Work(rank, type, title),
      engine_(engine),
      group_(std::move(group)),
      number_(last_number.fetch_add(1, std::memory_order_relaxed) + 1) {}

void NeuronWork::expect_one() {
  remaining_.fetch_add(1);
}

void NeuronWork::ready() {
  one_ended(nullptr, nullptr);
}

void NeuronWork::keep(const at::Tensor& tensor) {
  kept_.push_back(tensor);
}

void NeuronWork::add_output(const at::Tensor& tensor) {
  outputs_.push_back(tensor);
}

void NeuronWork::copy_back(const at::Tensor& from, const at::Tensor& to) {
  copies_.emplace_back(from, to);
}

void NeuronWork::set_sequence(uint64_t seq) {
  seq_ = seq;
}

void NeuronWork::set_on_end(std::function<void(std::shared_ptr<c10d::WorkInfo>)> on_end) {
  on_end_ = std::move(on_end);
}

c10::intrusive_ptr<Completion> NeuronWork::completion() {
  return c10::make_intrusive<Ending>(c10::intrusive_ptr<NeuronWork>::unsafe_reclaim_from_nonowning(this));
}

bool NeuronWork::calls_back() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return future_ || future_result_ || on_end_;
}

void NeuronWork::one_ended(const OpInfo* info, const Failure* failure) {
  if (info != nullptr && info->op == Op::kRecv) {
    source_.store(info->root);
  }
  if (info != nullptr) {
    std::lock_guard<std::mutex> lock(state_mutex_);
    start_ns_ = std::min(start_ns_, info->start_ns);
    end_ns_ = std::max(end_ns_, info->end_ns);
    if (failure != nullptr && !failure_) {
      failure_ = *failure;
    }
  }
  if (remaining_.fetch_sub(1) == 1) {
    end_work();
  }
}

void NeuronWork::end_work() {
  if (!failure_ && !copies_.empty()) {
    const AtItsEnd at_the_end(*this, kCopyBackStream);
    for (const auto& [from, to] : copies_) {
      plain_copy(to, from);
    }
    end_ns_ = std::max(end_ns_, at_the_end.now_ns());
  }
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  c10::intrusive_ptr<c10::ivalue::Future> future_result;
  std::vector<at::Tensor> kept;
  {
    std::lock_guard<std::mutex> lock(state_mutex_);
    ended_ = Clock::now();
    done_.store(true, std::memory_order_release);
    future = future_;
    future_result = future_result_;
    kept.swap(kept_); // freed here, or the tensors would live as long as the work does
    copies_.clear();
  }
  if (on_end_) {
    on_end_(std::make_shared<c10d::WorkInfo>(opType_, seq_, started_, ended_, ended_ - started_));
  }
  if (future) {
    mark(future, false);
  }
  if (future_result) {
    mark(future_result, true);
  }
}

bool NeuronWork::isCompleted() {
  if (!done_.load(std::memory_order_acquire)) {
    WithoutGil without;
    engine_.poll();
  }
  return done_.load(std::memory_order_acquire);
}

bool NeuronWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  return done_.load(std::memory_order_acquire) && !failure_;
}

std::exception_ptr NeuronWork::exception() const {
  std::lock_guard<std::mutex> lock(state_mutex_);
  if (!failure_) {
    return nullptr;
  }
  try {
    throw_failure(*failure_);
  } catch (...) {
    return std::current_exception();
  }
}

int NeuronWork::sourceRank() const {
  return source_.load();
}

std::vector<at::Tensor> NeuronWork::result() {
  return outputs_;
}

void NeuronWork::synchronize() {
  wait();
}

void NeuronWork::blockCurrentStream() {
  wait();
}

bool NeuronWork::wait(std::chrono::milliseconds timeout) {
  if (!done_.load(std::memory_order_acquire)) {
    const TimePoint deadline = timeout == kNoTimeout ? TimePoint::max() : Clock::now() + timeout;
    bool done = false;
    while (!done && Clock::now() < deadline) {
      {
        WithoutGil without;
        done = engine_.drive_until(done_, std::min(deadline, Clock::now() + kSignalCheck));
      }
      // So that Ctrl-C ends a wait for a rank that never comes.
      if (!done && Py_IsInitialized() && PyGILState_Check() && PyErr_CheckSignals() != 0) {
        throw pybind11::error_already_set();
      }
    }
    if (!done) {
      TORCH_CHECK_WITH(
          DistBackendError, false, "neuron: Timed out waiting ", timeout.count(), "ms for ",
          c10d::opTypeToString(opType_), " (seq ", seq_,
          "). The operation itself goes on until the timeout of its process group.");
    }
  }
  if (auto failure = exception()) {
    std::rethrow_exception(failure);
  }
  auto& clock = SimulatedClock::get();
  if (holds_host_) {
    clock.wait_for_work(nullptr, number_, end_ns_);
  } else if (clock.enabled()) {
    const c10::Stream stream = current_stream(-1);
    clock.wait_for_work(&stream, number_, end_ns_);
  }
  return true;
}

void NeuronWork::abort() {
  engine_.abort(*group_); // what a group has under way is in order, so one operation cannot be taken out
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::make_future(bool of_result) {
  if (of_result) {
    return c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  }
  std::vector<c10::Device> devices;
  for (const at::Tensor& output : outputs_) {
    if (!output.is_cpu() && devices.empty()) {
      devices.push_back(output.device());
    }
  }
  return c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), devices);
}

void NeuronWork::mark(const c10::intrusive_ptr<c10::ivalue::Future>& future, bool of_result) {
  const AtItsEnd at_the_end(*this, kCallbackStream);
  if (of_result) { // tells success or failure by its value, and never throws
    auto result = c10d::WorkResult::SUCCESS;
    if (failure_) {
      result = failure_->kind == Failure::kTimeout ? c10d::WorkResult::TIMEOUT
                                                   : c10d::WorkResult::COMM_ERROR;
    }
    future->markCompleted(c10::IValue(static_cast<uint8_t>(result)));
  } else if (failure_) {
    future->setError(exception());
  } else {
    future->markCompleted(c10::IValue(outputs_));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFuture() {
  {
    std::lock_guard<std::mutex> lock(state_mutex_);
    if (future_) {
      return future_;
    }
    future_ = make_future(false);
    if (!done_.load(std::memory_order_acquire)) {
      return future_; // end_work() marks it
    }
  }
  mark(future_, false);
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> NeuronWork::getFutureResult() {
  {
    std::lock_guard<std::mutex> lock(state_mutex_);
    if (future_result_) {
      return future_result_;
    }
    future_result_ = make_future(true);
    if (!done_.load(std::memory_order_acquire)) {
      return future_result_;
    }
  }
  mark(future_result_, true);
  return future_result_;
}

float NeuronWork::getDuration() const {
  TORCH_CHECK(done_.load(std::memory_order_acquire), "neuron: the work has not ended; wait() for it first");
  return start_ns_ > end_ns_ ? 0.0F : static_cast<float>(static_cast<double>(end_ns_ - start_ns_) / 1e6);
}

uint64_t NeuronWork::getSequencenumber() const {
  return seq_;
}

} // namespace neuron
