// c10d::Work of one call: it may stand for several operations of the engine (pieces, coalesced tensors).
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "distributed/engine.h"

namespace neuron {

// Throws what a failure is in Python: torch.distributed.DistBackendError, a RuntimeError.
[[noreturn]] void throw_failure(const Failure& failure);

class NeuronWork : public c10d::Work {
 public:
  NeuronWork(
      int rank, c10d::OpType type, const char* title, Engine& engine, std::shared_ptr<Group> group);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

  // --- while it is being set up, by the thread that makes it ---
  // One more operation must end. The work starts with one, which `ready()` takes away.
  void expect_one();
  void ready();
  // Kept alive until the end.
  void keep(const at::Tensor& tensor);
  void add_output(const at::Tensor& tensor);
  // `to` is not contiguous: the engine writes `from`, which is copied at the end.
  void copy_back(const at::Tensor& from, const at::Tensor& to);
  void set_sequence(uint64_t seq);
  // In simulated time its end holds up the host rather than the current stream: CPU tensors, barriers.
  void set_holds_host() {
    holds_host_ = true;
  }
  // Of the process, from 1.
  uint32_t number() const {
    return number_;
  }
  void set_on_end(std::function<void(std::shared_ptr<c10d::WorkInfo>)> on_end);
  // The engine tells an operation's end through this.
  c10::intrusive_ptr<Completion> completion();

 private:
  struct Ending;
  class AtItsEnd;
  bool calls_back() const;
  void one_ended(const OpInfo* info, const Failure* failure);
  void end_work();
  c10::intrusive_ptr<c10::ivalue::Future> make_future(bool of_result);
  void mark(const c10::intrusive_ptr<c10::ivalue::Future>& future, bool of_result);

  Engine& engine_;
  std::shared_ptr<Group> group_;
  std::atomic<int> remaining_{1};
  std::atomic<bool> done_{false};
  mutable std::mutex state_mutex_;
  std::optional<Failure> failure_;
  std::vector<at::Tensor> kept_;
  std::vector<at::Tensor> outputs_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  c10::intrusive_ptr<c10::ivalue::Future> future_result_;
  std::function<void(std::shared_ptr<c10d::WorkInfo>)> on_end_;
  TimePoint started_ = Clock::now();
  TimePoint ended_{};
  uint64_t seq_ = 0;
  std::atomic<int> source_{-1};
  // simulated
  const uint32_t number_;
  bool holds_host_ = false;
  int64_t start_ns_ = INT64_MAX;
  int64_t end_ns_ = 0;
};

} // namespace neuron
