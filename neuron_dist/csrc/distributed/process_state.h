// How another process of this machine is doing, and how it ended.
#pragma once

#include <sys/types.h>

#include <string>

namespace neuron {

std::string first_line(const char* path);
// State letter and exit code from /proc/<pid>/stat; false when the process is gone.
bool read_stat(pid_t pid, char& state, int& exit_code);
// "was killed by signal 9 (SIGKILL)". `pidfd` (or -1) helps where the parent has collected the process already.
std::string how_it_ended(pid_t pid, int pidfd);

} // namespace neuron
