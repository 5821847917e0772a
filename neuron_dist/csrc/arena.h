// A rank's device memory: one memfd, mapped over a large reserved range, that peers map too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace neuron {

// Layout of every arena, the same in each process so that an offset names a place in any mapping of it:
//   [0, kControlBytes)            synchronisation blocks and staging of the collective engine
//   [kControlBytes, kArenaBytes)  the device heap (simulated HBM)
// Both are address space only: a page costs memory when it is first touched.
constexpr size_t kControlBytes = size_t{16} << 30;
constexpr size_t kHeapBytes = size_t{256} << 30;
constexpr size_t kArenaBytes = kControlBytes + kHeapBytes;
constexpr int kMaxDevices = 127; // c10::DeviceIndex is an int8

class Arena {
 public:
  // The arena of `device` in this process; created at first use. Throws c10::Error if the system refuses,
  // and in a child forked after its parent had made one (the mapping is not inherited).
  static Arena& get(int device);
  // The arena whose mapping holds `ptr`, or nullptr. Lock-free: it stands on the path of every collective.
  static Arena* find(const void* ptr);
  // True in a forked child whose parent had already made an arena.
  static bool in_bad_fork();

  int fd() const {
    return fd_;
  }
  char* base() const {
    return base_;
  }
  char* heap() const {
    return base_ + kControlBytes;
  }
  bool contains(const void* ptr) const {
    return ptr >= base_ && ptr < base_ + kArenaBytes;
  }
  size_t offset(const void* ptr) const {
    return static_cast<const char*>(ptr) - base_;
  }
  // Gives whole pages inside [offset, offset + bytes) back to the system; they read as zero afterwards.
  void punch(size_t offset, size_t bytes) const;
  // Takes `bytes` of the control region for good (64-byte aligned, zeroed). Engine only.
  void* take_control(size_t bytes);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

 private:
  explicit Arena(int device);
  int fd_ = -1;
  char* base_ = nullptr;
  std::mutex control_mutex_;
  size_t control_used_ = 4096; // offset 0 is never handed out
};

// Maps a peer's arena from its descriptor (which the caller still owns). Never unmapped: a rank keeps its
// peers until it ends.
char* map_peer_arena(int fd);

} // namespace neuron
