// ProfilerActivity.PrivateUse1: the device's spans in torch.profiler.
#pragma once

namespace neuron {

// Tells torch how to make our profiler; it does so when somebody profiles. False if this torch has no Kineto.
bool register_profiler();

} // namespace neuron
