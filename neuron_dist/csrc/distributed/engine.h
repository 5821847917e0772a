// The progress engine: one a process. Whoever waits drives, in its own thread; a background thread drives
// asynchronous operations when nobody waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "distributed/group.h"

namespace neuron {

// A waiting thread looks this often before it sleeps. With a core for each rank the answer comes within a
// few microseconds and a futex would cost more; with more ranks than cores spinning takes the core that the
// others need.
constexpr int kSpinsWithCore = 300;
constexpr int kSpinsWithoutCore = 0;
constexpr int kYields = 20; // then, before sleeping

class Engine {
 public:
  // Starts with the first process group of this process; a forked child gets one of its own.
  static Engine& get(Peers& peers);
  static Engine* running();

  void add_group(std::shared_ptr<Group> group);
  void remove_group(const std::shared_ptr<Group>& group);
  void add_hook(std::unique_ptr<Hook> hook); // before the first operation, at most four

  // Enqueues. When the group has failed already, the operation ends at once with that failure.
  // `background`: nobody is about to wait, so the background thread shall drive.
  void enqueue(Group& group, AnyOperation op, bool background);

  // Drives until `*done` or `deadline`; false when the deadline came first. Any thread, without the GIL.
  bool drive_until(const std::atomic<bool>& done, TimePoint deadline);
  // One round without waiting.
  void poll();
  // Ends a group in all its ranks.
  void abort(Group& group);
  // Fails a group from outside.
  void fail(Group& group, const Failure& failure, bool tell_peers);
  Failure::Kind failure_of(const Group& group);
  // Drives until the group has nothing under way.
  void drain(const Group& group, TimePoint deadline);
  // Before the interpreter ends: the background thread drives no more, so no callback reaches Python.
  void retire();
  // From the watching thread: somebody has ended, look again.
  void wake();

 private:
  explicit Engine(Peers& peers);
  void background();
  bool progress(std::vector<Ended>& ended); // drive lock held
  bool check_health(std::vector<Ended>& ended); // drive lock held
  void tell(std::vector<Ended>& ended); // drive lock not held
  static bool calls_back(const std::vector<Ended>& ended);
  void wake_background();
  int64_t sleep_limit_ns(TimePoint deadline); // drive lock held

  Doorbell& doorbell_;
  std::mutex drive_; // guards the groups' state
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  std::atomic<int> waiters_{0};
  std::atomic<int> background_ops_{0}; // enqueued with `background` and not ended; a hint only
  std::atomic<uint32_t> background_wake_{0};
  std::atomic<bool> background_asleep_{false};
  std::atomic<bool> retired_{false};
  // One background thread at a time holds this and drives. Before a thread runs callbacks it gives it up, for
  // a callback may wait for an operation that somebody has to drive.
  std::mutex background_turn_;
  std::atomic<int> background_parked_{0}; // threads that wait for their turn
  int most_ranks_ = 1; // of any group so far
  std::atomic<int> spins_{kSpinsWithCore}; // before sleeping
};

} // namespace neuron
