// Simulated time's view of the engine: every collective and message goes into the ledger and the trace.
#pragma once

#include <string>
#include <vector>

#include "distributed/op_info.h"

namespace neuron {

class SimulationHook : public Hook {
 public:
  explicit SimulationHook(int slot) : slot_(slot) {}
  void before(OpInfo& info) override;
  void after(const OpInfo& info) override;
  void abort(const OpInfo& info, const Failure& failure) override;

 private:
  const int slot_;
};

// A new process group of this rank, by global ranks; returns its number, from 0.
uint32_t announce_group(const std::string& name, const std::vector<int>& ranks);
// What the program calls it.
void describe_group(uint32_t group, const std::string& description);

// All groups so far, into a trace that begins now. Under the clock's lock.
class Trace;
void trace_groups(Trace& trace);

} // namespace neuron
