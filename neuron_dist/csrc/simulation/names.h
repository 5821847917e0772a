// Small numbers for the names that a trace and the memory accounts use.
#pragma once

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
// Calls `told` with every name so far, and with each new one from now on, until the next call; an empty function
// ends that. `told` must not ask for names.
void tell_names(std::function<void(Name, const std::string&)> told);

} // namespace neuron
