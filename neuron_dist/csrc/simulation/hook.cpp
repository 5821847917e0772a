#include "simulation/hook.h"

#include <cstring>

#include "simulation/clock.h"

namespace neuron {
namespace {

constexpr uint64_t kNobody = UINT64_MAX;
enum Flags : uint8_t { kCpu = 1, kUneven = 2, kEager = 4 };

Record describe(const OpInfo& info, Kind kind) {
  Record record;
  record.kind = kind;
  record.dtype = static_cast<uint8_t>(info.dtype);
  record.flag = static_cast<uint8_t>(info.reduction);
  record.flag2 = static_cast<uint8_t>((info.cpu ? kCpu : 0) | (info.uneven ? kUneven : 0) | (info.eager ? kEager : 0));
  record.group = static_cast<int32_t>(info.ledger_group);
  record.a = info.seq;
  record.b = info.bytes;
  record.c = info.work;
  record.d = info.root < 0 ? kNobody : static_cast<uint64_t>(info.root);
  record.e = info.numel < 0 ? 0 : static_cast<uint64_t>(info.numel);
  return record;
}

struct Announced {
  std::string name;
  std::string description;
  std::vector<int> ranks;
};
std::vector<Announced>& announced() { // under the clock's lock
  static auto* groups = new std::vector<Announced>;
  return *groups;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void trace_group(Trace& trace, uint32_t number) {
  const Announced& group = announced()[number];
  std::string text = "{\"id\": " + std::to_string(number) + ", \"name\": " + quoted(group.name) +
      ", \"desc\": " + quoted(group.description) + ", \"ranks\": [";
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(group.ranks[i]);
  }
  Record fields;
  fields.group = static_cast<int32_t>(number);
  trace.text(Text::kGroup, text + "]}", fields);
  fields.stream = kGroupStream + static_cast<int32_t>(number);
  trace.text(Text::kStream, group.description.empty() ? group.name : group.description, fields);
}

bool is_message(const OpInfo& info) {
  return info.op == Op::kSend || info.op == Op::kRecv;
}

Name op_number(Op op) {
  static const auto* numbers = [] {
    auto* made = new std::array<Name, 16>{};
    for (size_t i = 0; i <= static_cast<size_t>(Op::kRecv); ++i) {
      (*made)[i] = name_of(op_name(static_cast<Op>(i)));
    }
    return made;
  }();
  return (*numbers)[static_cast<size_t>(op)];
}

} // namespace

void SimulationHook::before(OpInfo& info) {
  auto& clock = SimulatedClock::get();
  if (!info.first_piece || !clock.enabled()) {
    return;
  }
  const Name name = op_number(info.op);
  const auto held = clock.lock();
  info.cookies[slot_] = clock.ledger().communication_begins();
  if (Trace* trace = clock.trace()) {
    Record record = describe(info, Kind::kIssue);
    record.name = name;
    record.stream = info.stream;
    record.start_ns = info.ready_ns;
    trace->add(record);
  }
}

void SimulationHook::after(const OpInfo& info) {
  auto& clock = SimulatedClock::get();
  if (!info.first_piece || info.cookies[slot_] == 0) {
    return;
  }
  const Name name = op_number(info.op);
  const std::string_view text(info.algorithm.data(), strnlen(info.algorithm.data(), info.algorithm.size()));
  const Name algorithm = text.empty() ? 0 : name_of(text);
  const auto held = clock.lock();
  clock.ledger().communication_ends(info.cookies[slot_], info.start_ns, info.end_ns);
  if (info.op != Op::kRecv) { // a message counts once
    clock.ledger().count(
        info.ledger_group, static_cast<uint8_t>(info.op), info.root, info.algorithm.data(), info.bytes,
        info.end_ns - info.start_ns);
  }
  if (Trace* trace = clock.trace()) {
    Record record = describe(info, is_message(info) ? Kind::kMessage : Kind::kCollective);
    record.name = name;
    record.name2 = algorithm;
    record.stream = kGroupStream + static_cast<int32_t>(info.ledger_group);
    record.start_ns = info.start_ns;
    record.end_ns = info.end_ns;
    trace->add(record);
  }
  clock.finish_steps();
}

void SimulationHook::abort(const OpInfo& info, const Failure& /*failure*/) {
  auto& clock = SimulatedClock::get();
  if (!info.first_piece || info.cookies[slot_] == 0) {
    return;
  }
  const auto held = clock.lock();
  clock.ledger().communication_fails(info.cookies[slot_]);
  clock.finish_steps();
}

uint32_t announce_group(const std::string& name, const std::vector<int>& ranks) {
  auto& clock = SimulatedClock::get();
  const auto held = clock.lock();
  const auto number = static_cast<uint32_t>(announced().size());
  announced().push_back({name, "", ranks});
  clock.ledger().add_group(number, name, ranks);
  if (Trace* trace = clock.trace()) {
    trace_group(*trace, number);
  }
  return number;
}

void describe_group(uint32_t group, const std::string& description) {
  auto& clock = SimulatedClock::get();
  const auto held = clock.lock();
  announced()[group].description = description;
  clock.ledger().rename_group(group, description);
  if (Trace* trace = clock.trace()) {
    trace_group(*trace, group);
  }
}

void trace_groups(Trace& trace) {
  for (uint32_t i = 0; i < announced().size(); ++i) {
    trace_group(trace, i);
  }
}

} // namespace neuron
