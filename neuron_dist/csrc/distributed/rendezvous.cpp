#include "distributed/rendezvous.h"

#include <sstream>

#include "arena.h"
#include "distributed/engine.h"

namespace neuron {
namespace {

std::vector<uint8_t> encode(const Address& address, uint64_t block) {
  std::ostringstream out;
  out << address.uid << ' ' << address.pid << ' ' << address.global_rank << ' ' << block << ' '
      << address.host << ' ' << address.hostname;
  const std::string text = out.str();
  return {text.begin(), text.end()};
}

Address decode(const std::vector<uint8_t>& bytes, uint64_t& block) {
  std::istringstream in(std::string(bytes.begin(), bytes.end()));
  Address address;
  in >> address.uid >> address.pid >> address.global_rank >> block >> address.host >> address.hostname;
  return address;
}

std::string key(int rank) {
  return "neuron/" + std::to_string(rank);
}

} // namespace

std::shared_ptr<Group> rendezvous(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
    const std::vector<int>& global_ranks, std::chrono::milliseconds timeout, Peers& peers) {
  const auto deadline = Clock::now() + timeout;
  const int size = static_cast<int>(global_ranks.size());
  char* block = static_cast<char*>(peers.arena().take_control(GroupLayout(size).bytes));
  store->set(key(rank), encode(peers.self(), peers.arena().offset(block)));

  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) {
    keys.push_back(key(r));
  }
  try {
    store->wait(keys, timeout);
  } catch (const c10::Error&) { // the store's own message names keys; say which ranks they are
    std::ostringstream missing;
    int count = 0;
    for (int r = 0; r < size; ++r) {
      if (!store->check({keys[r]})) {
        missing << (count++ ? ", " : "") << global_ranks[r];
      }
    }
    if (count == 0) {
      throw;
    }
    TORCH_CHECK_WITH(
        DistBackendError, false, "neuron: Timed out waiting ", timeout.count(), "ms for rank",
        count > 1 ? "s " : " ", missing.str(), " to join group '", name, "'");
  }
  const auto values = store->multiGet(keys);
  std::vector<Address> addresses;
  std::vector<uint64_t> blocks(size);
  for (int r = 0; r < size; ++r) {
    addresses.push_back(decode(values[r], blocks[r]));
    TORCH_CHECK_WITH(
        DistBackendError, addresses[r].host == peers.self().host, "neuron: rank ", global_ranks[r],
        " of group '", name, "' runs on ", addresses[r].hostname, ", rank ", global_ranks[rank], " on ",
        peers.self().hostname,
        ", which it cannot reach through shared memory. Ranks on several machines (or network namespaces) "
        "are not supported yet; start all ranks on one.");
  }
  return std::make_shared<Group>(
      name, rank, global_ranks, peers.connect(addresses, deadline), blocks, peers);
}

} // namespace neuron
