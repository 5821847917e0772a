#include "arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <c10/util/Exception.h>

namespace neuron {
namespace {

std::array<std::atomic<Arena*>, kMaxDevices> arenas{};
std::atomic<int> highest{-1}; // the largest device index with an arena: bounds find()
std::mutex create_mutex;
std::atomic<bool> bad_fork{false};

void after_fork_in_child() {
  if (highest.load(std::memory_order_relaxed) >= 0) {
    bad_fork.store(true, std::memory_order_relaxed);
  }
}

char* map_arena(int fd, const char* whose) {
  void* base = mmap(
      nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  TORCH_CHECK(
      base != MAP_FAILED,
      "neuron: cannot map ", whose, " device memory (", kArenaBytes >> 30,
      " GiB of address space): ", std::strerror(errno),
      ". Is `ulimit -v` set? It must be unlimited.");
  // A forked child (a data-loader worker) must not see it, and a core dump need not hold it.
  madvise(base, kArenaBytes, MADV_DONTFORK);
  madvise(base, kArenaBytes, MADV_DONTDUMP);
  return static_cast<char*>(base);
}

} // namespace

Arena::Arena(int device) {
  const std::string name = "neuron:" + std::to_string(device);
  fd_ = memfd_create(name.c_str(), MFD_CLOEXEC);
  TORCH_CHECK(fd_ >= 0, "neuron: memfd_create failed: ", std::strerror(errno));
  TORCH_CHECK(
      ftruncate(fd_, static_cast<off_t>(kArenaBytes)) == 0,
      "neuron: cannot size the device memory of ", name, ": ", std::strerror(errno));
  base_ = map_arena(fd_, "this rank's");
}

Arena& Arena::get(int device) {
  TORCH_CHECK(
      device >= 0 && device < kMaxDevices, "neuron: no device of index ", device,
      " (0 to ", kMaxDevices - 1, ")");
  TORCH_CHECK(
      !bad_fork.load(std::memory_order_relaxed),
      "neuron: cannot re-initialize the neuron device in a forked subprocess. To use neuron with "
      "multiprocessing, use the 'spawn' start method, or fork before the first neuron tensor.");
  auto& slot = arenas[device];
  if (Arena* arena = slot.load(std::memory_order_acquire)) {
    return *arena;
  }
  std::lock_guard<std::mutex> lock(create_mutex);
  if (Arena* arena = slot.load(std::memory_order_acquire)) {
    return *arena;
  }
  static const bool registered = pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
  TORCH_CHECK(registered, "neuron: pthread_atfork failed");
  auto* arena = new Arena(device); // lives as long as the process: tensors may outlive statics
  slot.store(arena, std::memory_order_release);
  if (device > highest.load(std::memory_order_relaxed)) {
    highest.store(device, std::memory_order_release);
  }
  return *arena;
}

Arena* Arena::find(const void* ptr) {
  const int last = highest.load(std::memory_order_acquire);
  for (int i = 0; i <= last; ++i) {
    Arena* arena = arenas[i].load(std::memory_order_acquire);
    if (arena != nullptr && arena->contains(ptr)) {
      return arena;
    }
  }
  return nullptr;
}

bool Arena::in_bad_fork() {
  return bad_fork.load(std::memory_order_relaxed);
}

void Arena::punch(size_t offset, size_t bytes) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = (offset + bytes) / page * page;
  if (first >= last) {
    return;
  }
  const int rc = fallocate(
      fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
      static_cast<off_t>(last - first));
  TORCH_CHECK(rc == 0, "neuron: cannot return device memory to the system: ", std::strerror(errno));
}

void* Arena::take_control(size_t bytes) {
  std::lock_guard<std::mutex> lock(control_mutex_);
  const size_t at = control_used_;
  const size_t end = at + (bytes + 63) / 64 * 64;
  TORCH_CHECK(
      end <= kControlBytes, "neuron: the collective engine's control region (", kControlBytes >> 30,
      " GiB) is used up; too many process groups are alive in this rank");
  control_used_ = end;
  return base_ + at;
}

char* map_peer_arena(int fd) {
  return map_arena(fd, "a peer's");
}

} // namespace neuron
