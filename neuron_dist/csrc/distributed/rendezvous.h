// How the ranks of a new group find each other: addresses through the store, arenas through Unix sockets.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/group.h"

namespace neuron {

// Collective over the ranks of the group. Throws DistBackendError naming who has not come, or who runs on
// another machine.
std::shared_ptr<Group> rendezvous(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
    const std::vector<int>& global_ranks, std::chrono::milliseconds timeout, Peers& peers);

} // namespace neuron
