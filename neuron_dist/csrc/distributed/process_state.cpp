#include "distributed/process_state.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "distributed/sync.h"

namespace neuron {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool read_stat(pid_t pid, char& state, int& exit_code) {
  const std::string line = first_line(("/proc/" + std::to_string(pid) + "/stat").c_str());
  const auto paren = line.rfind(')'); // the name before it may hold anything
  if (paren == std::string::npos) {
    return false;
  }
  std::istringstream fields(line.substr(paren + 2));
  fields >> state;
  std::string field;
  for (int i = 4; i <= 52; ++i) { // fields 4 to 52 of proc(5); the last is exit_code
    fields >> field;
  }
  exit_code = std::atoi(field.c_str());
  return true;
}

namespace {

// The wait status of a process whose parent has collected it already: Linux 6.15 keeps it with the pidfd.
bool read_pidfd_exit(int pidfd, int& exit_code) {
  struct Info { // struct pidfd_info of linux/pidfd.h, first version
    uint64_t mask;
    uint64_t cgroup;
    uint32_t ids[11];
    int32_t exit_code;
  } info{};
  static_assert(sizeof(Info) == 64);
  constexpr uint64_t kExit = 1 << 3; // PIDFD_INFO_EXIT
  info.mask = kExit;
  if (pidfd < 0 || ioctl(pidfd, _IOWR(0xFF, 11, Info), &info) != 0 || (info.mask & kExit) == 0) {
    return false;
  }
  exit_code = info.exit_code;
  return true;
}

} // namespace

std::string how_it_ended(pid_t pid, int pidfd) {
  // The socket closes a moment before the process is a zombie; the parent may collect that at any time.
  const auto deadline = Clock::now() + std::chrono::milliseconds(100);
  char state = '?';
  int code = 0;
  bool known = false;
  while (!known && Clock::now() < deadline) {
    if (read_stat(pid, state, code)) {
      known = code != 0 || state == 'Z' || state == 'X';
    } else if (read_pidfd_exit(pidfd, code)) {
      known = true;
    }
    if (!known) {
      usleep(200);
    }
  }
  if (!known) {
    return "died (its exit status is gone: the parent had already collected it)";
  }
  if (const int signal = code & 0x7f; signal != 0) {
    const char* name = sigabbrev_np(signal);
    return "was killed by signal " + std::to_string(signal) + " (SIG" + (name ? name : "?") + ")";
  }
  return "exited with status " + std::to_string(code >> 8);
}

} // namespace neuron
