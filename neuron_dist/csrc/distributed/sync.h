// Waiting and waking between processes: futexes in shared memory.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <thread>
#include <utility>

namespace neuron {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Sleeps while *word == expected, at most timeout_ns. Spurious returns are normal: callers re-check.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns) {
  timespec ts{};
  ts.tv_sec = timeout_ns / 1'000'000'000;
  ts.tv_nsec = timeout_ns % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, expected, &ts, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// One per rank, in its shared memory. A rank that has something to do for a sleeper rings; ringing costs a
// load when nobody sleeps. The pairing is Dekker's: a sleeper first counts itself, then looks for work; a
// ringer first publishes the work, then looks for sleepers. Both sides are sequentially consistent.
struct alignas(64) Doorbell {
  std::atomic<uint32_t> bell{0};
  std::atomic<uint32_t> sleepers{0};

  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      bell.fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(&bell);
    }
  }
};

// A thread that handles no signals, so that they reach the main thread, where Python expects them.
template <typename F>
void start_thread(F&& body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::forward<F>(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace neuron
