// Small numbers for the names that a trace and the memory accounts use.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace neuron {

using Name = uint16_t;

// The number of `text`, the same for the life of the process. Thread-safe. 0 is "(unknown)", also for all
// names beyond 65,534.
Name name_of(std::string_view text);
std::string text_of(Name name);
// Which operators have run since the last call of clear_executed(), by name.
inline std::array<std::atomic<bool>, 65536> executed_names{};
inline void note_executed(Name name) {
  if (!executed_names[name].load(std::memory_order_relaxed)) { // seldom: the line stays shared
    executed_names[name].store(true, std::memory_order_relaxed);
  }
}
std::vector<std::string> executed();
void clear_executed();
// Calls `told` with every name so far, and with each new one from now on, until the next call; an empty function
// ends that. `told` must not ask for names.
void tell_names(std::function<void(Name, const std::string&)> told);

} // namespace neuron
