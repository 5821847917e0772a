#pragma once

namespace neuron {

void install_guard_and_hooks();

} // namespace neuron
