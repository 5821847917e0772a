// The other ranks of this machine: their arenas, their doorbells, and whether they are alive.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "distributed/flight_recorder.h"
#include "distributed/sync.h"
#include "simulation/ledger.h"

namespace neuron {

class Arena;

// What every rank keeps at a published offset of its arena, for its peers to use.
struct ProcessBlock {
  Doorbell doorbell;
  FlightRing flight;
  LedgerBlock ledger;
  // A peer asks for this rank's Python stack by counting `stack_wanted` up (and says so on the socket);
  // the answer stands when `stack_ready` has caught up.
  std::atomic<uint32_t> stack_wanted;
  std::atomic<uint32_t> stack_ready;
  char stack_text[8192];
};

struct Peer {
  uint64_t uid = 0;
  pid_t pid = 0;
  int global_rank = -1;
  char* arena = nullptr;
  ProcessBlock* block = nullptr;
  int socket = -1;
  int pidfd = -1;
  std::atomic<bool> ended{false};
  std::string ending; // how; written before `ended` is set

  // "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)"
  std::string describe() const;
};

// What a rank says of itself in the store, so that its peers can find it.
struct Address {
  uint64_t uid = 0;
  int64_t pid = 0;
  int64_t global_rank = -1;
  std::string host; // kernel boot id and network namespace: equal means reachable by a Unix socket
  std::string hostname;
};

// Process-wide. Started by the first process group; never before, so that a parent may fork ranks.
// Thread-safe.
class Peers {
 public:
  // The first call opens the socket and starts the watching thread.
  static Peers& start(int device_index, int global_rank);
  static Peers* running(); // nullptr before start() and after a fork

  const Address& self() const {
    return self_address_;
  }
  Arena& arena() const {
    return *arena_;
  }
  ProcessBlock& block() const {
    return *block_;
  }
  // The peers of these addresses (nullptr for this process itself), connected. Throws when one does not
  // answer until `deadline`.
  std::vector<Peer*> connect(const std::vector<Address>& addresses, TimePoint deadline);
  // All peers that this process has met, in the order of their global ranks; also those that have ended.
  std::vector<const Peer*> met();
  // Asks `peer` for its main thread's Python stack; empty when it does not answer within `patience`.
  std::string python_stack(Peer& peer, std::chrono::milliseconds patience);
  // Supplies python_stack()'s text in this process; runs on a thread of its own and takes the GIL.
  void set_stack_provider(std::function<std::string()> provider);
  // Called on the watching thread whenever a peer has ended.
  void set_on_ending(std::function<void()> callback);

 private:
  Peers(int device_index, int global_rank);
  void watch();
  void accept_one();
  Peer* add(uint64_t uid, pid_t pid, int global_rank, uint64_t block_offset, int arena_fd, int socket);
  Peer* find(uint64_t uid);
  void read_from(Peer& peer);
  void answer_stack_request();

  Arena* arena_;
  ProcessBlock* block_;
  Address self_address_;
  int listener_ = -1;
  int wake_ = -1; // eventfd: the set of sockets has changed
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::unique_ptr<Peer>> peers_;
  std::function<std::string()> stack_provider_;
  std::function<void()> on_ending_;
};

} // namespace neuron
