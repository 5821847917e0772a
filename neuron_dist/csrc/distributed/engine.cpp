#include "distributed/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include <c10/util/Exception.h>

namespace neuron {
namespace {

// Upper bound of a sleep. Everything that matters rings the doorbell; this is how late a deadline, or poison
// that somebody was killed while ringing, can be noticed.
constexpr int64_t kLongestSleepNs = 100'000'000;

Engine* instance = nullptr;
pid_t instance_pid = 0;
std::mutex instance_mutex;

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

} // namespace

Engine& Engine::get(Peers& peers) {
  std::lock_guard<std::mutex> lock(instance_mutex);
  if (instance == nullptr || instance_pid != getpid()) {
    instance = new Engine(peers); // ends with the process
    instance_pid = getpid();
    peers.set_on_ending([engine = instance] { engine->wake(); });
    start_thread([engine = instance] { engine->background(); });
  }
  return *instance;
}

Engine* Engine::running() {
  std::lock_guard<std::mutex> lock(instance_mutex);
  return instance_pid == getpid() ? instance : nullptr;
}

Engine::Engine(Peers& peers)
    : doorbell_(peers.block().doorbell) {}

void Engine::add_group(std::shared_ptr<Group> group) {
  std::lock_guard<std::mutex> lock(drive_);
  most_ranks_ = std::max(most_ranks_, group->size());
  spins_ = most_ranks_ <= cores() ? kSpinsWithCore : kSpinsWithoutCore;
  groups_.push_back(std::move(group));
}

void Engine::remove_group(const std::shared_ptr<Group>& group) {
  std::lock_guard<std::mutex> lock(drive_);
  std::erase(groups_, group);
}

void Engine::add_hook(std::unique_ptr<Hook> hook) {
  TORCH_CHECK(hooks_.size() < OpInfo{}.cookies.size(), "neuron: too many hooks on the engine");
  hooks_.push_back(std::move(hook));
}

void Engine::enqueue(Group& group, AnyOperation op, bool background) {
  group.enqueue(std::move(op), [this](OpInfo& info) {
    for (auto& hook : hooks_) {
      hook->before(info);
    }
  });
  std::unique_lock<std::mutex> driving(drive_, std::try_to_lock);
  if (!driving && group.has_failed()) {
    driving.lock(); // it may have been removed, and then nobody else would look into it
  }
  if (driving) { // else whoever drives takes it on its next round
    std::vector<Ended> ended;
    group.arrive(ended);
    background = background && !group.idle();
    driving.unlock();
    tell(ended);
  }
  if (background) {
    background_ops_.fetch_add(1);
    wake_background();
  }
}

void Engine::wake_background() {
  if (background_asleep_.load()) {
    background_wake_.fetch_add(1);
    futex_wake_all(&background_wake_);
  }
}

bool Engine::calls_back(const std::vector<Ended>& ended) {
  return std::any_of(ended.begin(), ended.end(), [](const Ended& e) {
    return e.operation.completion->calls_back();
  });
}

bool Engine::progress(std::vector<Ended>& ended) {
  bool moved = false;
  for (auto& group : groups_) {
    if (!group->idle()) {
      moved = group->progress(ended) || moved;
    }
  }
  return moved;
}

bool Engine::check_health(std::vector<Ended>& ended) {
  const TimePoint now = Clock::now();
  bool failed = false;
  for (auto& group : groups_) {
    if (!group->idle()) {
      failed = group->check_health(now, ended) || failed;
    }
  }
  return failed;
}

void Engine::tell(std::vector<Ended>& ended) {
  if (ended.empty()) {
    return;
  }
  for (Ended& e : ended) {
    for (auto& hook : hooks_) {
      if (e.failure) {
        hook->abort(e.operation.info, *e.failure);
      } else {
        hook->after(e.operation.info);
      }
    }
    e.operation.completion->op_ended(e.operation.info, e.failure ? &*e.failure : nullptr);
  }
  ended.clear();
  doorbell_.ring(); // other threads of this process may wait for what has just ended
}

int64_t Engine::sleep_limit_ns(TimePoint deadline) {
  TimePoint first = deadline;
  for (auto& group : groups_) {
    if (!group->idle()) {
      first = std::min(first, group->next_deadline());
    }
  }
  const TimePoint now = Clock::now();
  if (first <= now) {
    return 0;
  }
  if (first - now > std::chrono::nanoseconds(kLongestSleepNs)) {
    return kLongestSleepNs;
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(first - now).count() + 1;
}

bool Engine::drive_until(const std::atomic<bool>& done, TimePoint deadline) {
  std::vector<Ended> ended;
  const auto step = [&] {
    bool moved;
    {
      std::lock_guard<std::mutex> lock(drive_);
      moved = progress(ended);
    }
    moved = moved || !ended.empty();
    if (calls_back(ended)) { // meanwhile the background thread drives
      waiters_.fetch_sub(1);
      wake_background();
      tell(ended);
      waiters_.fetch_add(1);
    } else {
      tell(ended);
    }
    return moved;
  };
  waiters_.fetch_add(1);
  int spins = 0;
  while (!done.load(std::memory_order_acquire)) {
    if (step()) {
      spins = 0;
      continue;
    }
    if (spins < spins_) {
      ++spins;
      cpu_relax();
      continue;
    }
    if (spins < spins_ + kYields) {
      ++spins;
      sched_yield(); // the rank that we wait for may need this core
      continue;
    }
    doorbell_.sleepers.fetch_add(1);
    const uint32_t bell = doorbell_.bell.load();
    if (!step() && !done.load(std::memory_order_acquire)) {
      int64_t limit;
      {
        std::lock_guard<std::mutex> lock(drive_);
        limit = sleep_limit_ns(deadline);
      }
      if (limit > 0) {
        futex_wait(&doorbell_.bell, bell, limit);
      }
      doorbell_.sleepers.fetch_sub(1);
      if (!step()) {
        {
          std::lock_guard<std::mutex> lock(drive_);
          check_health(ended);
        }
        tell(ended);
      }
      if (Clock::now() >= deadline && !done.load(std::memory_order_acquire)) {
        break;
      }
    } else {
      doorbell_.sleepers.fetch_sub(1);
    }
    spins = 0;
  }
  if (waiters_.fetch_sub(1) == 1 && background_ops_.load() > 0) {
    wake_background(); // it had left the driving to us
  }
  return done.load(std::memory_order_acquire);
}

void Engine::poll() {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(drive_);
    progress(ended);
  }
  tell(ended);
}

void Engine::abort(Group& group) {
  fail(
      group,
      {Failure::kAborted, "neuron: group '" + group.name() + "' was aborted on rank " +
           std::to_string(group.global_rank(group.rank()))},
      true);
}

void Engine::fail(Group& group, const Failure& failure, bool tell_peers) {
  std::vector<Ended> ended;
  {
    std::lock_guard<std::mutex> lock(drive_);
    group.fail(failure, tell_peers, ended);
  }
  tell(ended);
}

Failure::Kind Engine::failure_of(const Group& group) {
  std::lock_guard<std::mutex> lock(drive_);
  return group.failure() ? group.failure()->kind : Failure::kInvalid;
}

void Engine::drain(const Group& group, TimePoint deadline) {
  const std::atomic<bool> never{false};
  while (Clock::now() < deadline) {
    {
      std::lock_guard<std::mutex> lock(drive_);
      if (group.idle()) {
        return;
      }
    }
    drive_until(never, std::min(deadline, Clock::now() + std::chrono::milliseconds(1)));
  }
}

void Engine::retire() {
  retired_.store(true);
}

void Engine::wake() {
  doorbell_.bell.fetch_add(1);
  futex_wake_all(&doorbell_.bell);
}

void Engine::background() {
  std::vector<Ended> ended;
  const auto park = [this] {
    background_parked_.fetch_add(1);
    background_turn_.lock();
    background_parked_.fetch_sub(1);
  };
  park();
  while (true) {
    const uint32_t wake = background_wake_.load();
    background_asleep_.store(true);
    const bool work = background_ops_.load() > 0 && waiters_.load() == 0 && !retired_.load();
    if (!work) {
      futex_wait(&background_wake_, wake, INT64_MAX);
      continue;
    }
    background_asleep_.store(false);
    doorbell_.sleepers.fetch_add(1);
    const uint32_t bell = doorbell_.bell.load();
    bool moved = false;
    bool pending = false;
    int64_t limit = 0;
    {
      std::lock_guard<std::mutex> lock(drive_);
      moved = progress(ended) || check_health(ended);
      pending = std::any_of(groups_.begin(), groups_.end(), [](const auto& g) { return !g->idle(); });
      if (!pending) {
        background_ops_.store(0);
      }
      limit = sleep_limit_ns(TimePoint::max());
    }
    moved = moved || !ended.empty();
    if (calls_back(ended)) {
      if (background_parked_.load() == 0) {
        start_thread([this] { background(); });
      }
      background_turn_.unlock();
      tell(ended);
      park();
    } else {
      tell(ended);
    }
    if (!moved && pending && limit > 0) {
      futex_wait(&doorbell_.bell, bell, limit);
    }
    doorbell_.sleepers.fetch_sub(1);
  }
}

} // namespace neuron
