#include "device/profiler.h"

#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>) && __has_include(<IActivityProfiler.h>)
#define USE_KINETO
#define FMT_HEADER_ONLY
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/ApproximateClock.h>

#include "device/runtime.h"
#include "simulation/activities.h"
#include "simulation/clock.h"

namespace neuron {
namespace {

using libkineto::ActivityType;

ActivityType type_of(Activity::Kind kind) {
  return kind == Activity::kCopyToDevice || kind == Activity::kCopyFromDevice ? ActivityType::GPU_MEMCPY
                                                                             : ActivityType::CONCURRENT_KERNEL;
}

std::string title_of(const Activity& activity) {
  switch (activity.kind) {
    case Activity::kCopyToDevice:
      return "Memcpy HtoD (Host -> neuron)";
    case Activity::kCopyFromDevice:
      return "Memcpy DtoH (neuron -> Host)";
    case Activity::kCollective:
      return "collective " + text_of(activity.name);
    default:
      return "kernel " + text_of(activity.name);
  }
}

// One recording. Simulated time goes on from the host's time at its start: durations, and distances between spans of
// the device, are simulated; only that origin is the host's.
class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    auto& clock = SimulatedClock::get();
    device_ = current_device();
    simulated_start_ns_ = std::max(SimulatedClock::host_ns(), clock.time_of_device(device_));
    host_start_ns_ = c10::getTime();
    Activities::get().start();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    host_end_ns_ = c10::getTime();
    activities_ = Activities::get().stop();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override {
    return {};
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, nullptr, 0, 0);
  }

  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t /*start*/,
      int64_t /*end*/) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(host_start_ns_, host_end_ns_, "neuron");
    buffer_->gpuOpCount = static_cast<int>(activities_.size());
    for (const Activity& a : activities_) {
      buffer_->emplace_activity(buffer_->span, type_of(a.kind), title_of(a));
      auto& span = *buffer_->activities.back();
      span.startTime = host_start_ns_ + (a.start_ns - simulated_start_ns_);
      span.endTime = span.startTime + (a.end_ns - a.start_ns);
      span.device = a.device;
      span.resource = a.stream;
      span.threadId = 0;
      span.id = static_cast<int32_t>(a.correlation);
      span.flow.id = static_cast<uint32_t>(a.correlation);
      span.flow.type = libkineto::kLinkAsyncCpuGpu;
      span.flow.start = 0;
      if (a.correlation != 0 && linked) {
        span.linked = linked(static_cast<int32_t>(a.correlation));
      }
      span.addMetadata("simulated start (ns)", a.start_ns);
      span.addMetadata("simulated duration (ns)", a.end_ns - a.start_ns);
      span.addMetadata("bytes", a.bytes);
      span.addMetadata("flops", a.flops);
      span.addMetadata("stream", a.stream);
      span.addMetadata("device", static_cast<int>(a.device));
      span.addMetadata("correlation", a.correlation);
      streams_.emplace(a.stream, a.device);
      span.log(logger);
    }
    activities_.clear();
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    const std::string name = "neuron:" + std::to_string(device_);
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{device_, device_ + libkineto::kExceedMaxPid, name, name + " (simulated time)"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (const auto& [stream, device] : streams_) {
      const bool group = stream >= kGroupStream;
      rows.push_back(
          {stream, stream, device,
           (group ? "group " : "stream ") + std::to_string(group ? stream - kGroupStream : stream)});
    }
    return rows;
  }

  // What processTrace() logged is kept by whoever reads the trace.
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override {
    Activities::push_correlation(id);
  }
  void popCorrelationId() override {
    Activities::pop_correlation();
  }

 private:
  int device_ = 0;
  int64_t simulated_start_ns_ = 0;
  int64_t host_start_ns_ = 0;
  int64_t host_end_ns_ = 0;
  std::vector<Activity> activities_;
  std::map<int32_t, int> streams_; // and their devices
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class NeuronProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string text = "neuron";
    return text;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> all{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY};
    return all;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config& /*config*/) override {
    // torch asks every profiler that is registered, also when only the CPU is to be profiled.
    return wanted.count(ActivityType::CONCURRENT_KERNEL) == 0 ? nullptr : std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t /*start_ms*/, int64_t /*duration_ms*/, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }
};

} // namespace

bool register_profiler() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<NeuronProfiler>(); });
  return true;
}

} // namespace neuron
#else
namespace neuron {

bool register_profiler() {
  return false;
}

} // namespace neuron
#endif
