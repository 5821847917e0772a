// How a collective runs. A rank arrives by posting a descriptor; when all have arrived and agree, it does its
// share: it pulls what is meant for it out of its peers' memory, or reduces its slice of all inputs into all
// outputs; then it departs. Small inputs travel inside the descriptors, so nobody waits for departures.
#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "arena.h"
#include "distributed/group.h"
#include "distributed/reduce.h"

namespace neuron {
namespace {

// Each rank reduces a slice that starts on a cache line, so that no line is written by two ranks.
constexpr int64_t kLine = 64;
// How many staged pieces may be under way: enough to copy one in while another is reduced and a third is
// copied out, few enough to stay in the cache.
constexpr size_t kStagedPieces = 3;

// Ranks may give different amounts.
bool sizes_vary(Op op) {
  return op == Op::kGather || op == Op::kScatter || op == Op::kAllToAll;
}

bool reduces_to_peers(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce;
}

} // namespace

bool Group::arrived(uint64_t seq) const {
  const uint64_t wanted = static_cast<uint64_t>(size()) * (seq / kSlots + 1);
  return central_->arrived[seq % kSlots].value.load(std::memory_order_acquire) >= wanted;
}

bool Group::all_departed(uint64_t seq) const {
  const uint64_t wanted = static_cast<uint64_t>(size()) * (seq / kSlots + 1);
  return central_->departed[seq % kSlots].value.load(std::memory_order_acquire) >= wanted;
}

bool Group::can_post(const Collective& op) const {
  const uint64_t seq = op.info.seq;
  if (op.staged && staged_ >= kStagedPieces) {
    return false;
  }
  return seq < kSlots || all_departed(seq - kSlots);
}

void Group::post(Collective& op) {
  const uint64_t seq = op.info.seq;
  Descriptor& mine = descriptor(rank_, seq);
  mine.print = Fingerprint{
      seq, op.sizes_hash, op.plan ? op.plan->hash : 0, sizes_vary(op.info.op) ? -1 : op.info.numel, op.info.root, op.piece,
      op.info.op, op.info.reduction, op.info.dtype, op.staged};
  mine.factor = op.factor;
  mine.ready_ns = op.info.ready_ns;
  mine.cost_ns = op.info.cost_ns;
  mine.algorithm = op.info.algorithm;
  mine.n_in = op.in.size();

  uint64_t total = 0;
  uint64_t outside = 0;
  for (const Buffer& in : op.in) {
    total += in.bytes;
    outside += is_shared(in.data) ? 0 : in.bytes;
  }
  op.small = total <= inline_limit_;
  char* copy_to = nullptr;
  if (op.small) {
    copy_to = blocks_[rank_] + layout_.inlines + seq % kSlots * kInlineBytes;
  } else if (outside > 0) {
    op.staging_in = Staging(process_.arena(), outside);
    copy_to = op.staging_in.data();
  }
  Span* in = spans(mine);
  for (size_t i = 0; i < op.in.size(); ++i) {
    char* data = op.in[i].data;
    if (op.small || !is_shared(data)) {
      if (op.in[i].bytes > 0) {
        std::memcpy(copy_to, data, op.in[i].bytes);
      }
      data = copy_to;
      copy_to += op.in[i].bytes;
    }
    in[i] = {process_.arena().offset(data), op.in[i].bytes};
  }

  uint64_t out_bytes = 0;
  for (const Buffer& out : op.out) {
    out_bytes += out.bytes;
  }
  mine.out = {0, out_bytes};
  if (reduces_to_peers(op.info.op) && !op.small && !op.out.empty()) {
    op.shared_out = op.out[0].data;
    if (!is_shared(op.shared_out)) {
      if (op.staging_in.data() == nullptr) {
        op.staging_out = Staging(process_.arena(), out_bytes);
      }
      op.shared_out = op.staging_in.data() ? op.staging_in.data() : op.staging_out.data();
    }
    mine.out.offset = process_.arena().offset(op.shared_out);
  }
  std::copy(op.expected_bytes.begin(), op.expected_bytes.end(), expected(mine));
  staged_ += op.staged ? 1 : 0;

  mine.posted.store(seq + 1, std::memory_order_release);
  const uint64_t count = central_->arrived[seq % kSlots].value.fetch_add(1) + 1;
  if (count == static_cast<uint64_t>(size()) * (seq / kSlots + 1)) {
    ring_all();
  }
}

std::string Group::find_mismatch(const Collective& op) const {
  const uint64_t seq = op.info.seq;
  const auto call = [&](int rank) {
    const Fingerprint& p = descriptor(rank, seq).print;
    OpInfo info;
    info.op = p.op;
    info.reduction = p.reduction;
    info.dtype = p.dtype;
    info.numel = p.numel;
    info.root = p.root < 0 ? -1 : global_ranks_[p.root];
    std::string text = info.describe();
    return p.staged ? text + " on cpu" : text;
  };
  const std::string where = "neuron: ranks disagree in group '" + name_ + "' at seq " + std::to_string(seq) + ": ";
  const Fingerprint& first = descriptor(0, seq).print;
  for (int r = 1; r < size(); ++r) {
    if (descriptor(r, seq).print == first) {
      continue;
    }
    std::map<std::string, std::vector<int>> sides;
    for (int q = 0; q < size(); ++q) {
      sides[call(q)].push_back(global_ranks_[q]);
    }
    std::ostringstream out;
    out << where;
    bool next = false;
    for (const auto& [text, ranks] : sides) {
      out << (next ? "; " : "") << (ranks.size() > 1 ? "ranks " : "rank ");
      for (size_t i = 0; i < ranks.size(); ++i) {
        out << (i ? ", " : "") << ranks[i];
      }
      out << " called " << text;
      next = true;
    }
    if (sides.size() == 1) { // in the same words
      out << ", but with different lists of sizes, at different pieces of a tensor, or by different schedules "
             "(is NEURON_DIST_ALGORITHM or NEURON_DIST_CLUSTER the same on every rank?)";
    }
    return out.str();
  }

  // Sizes that only two of the ranks know: everyone checks every pair, so that everyone raises.
  const auto differ = [&](int from, uint64_t sent, int to, uint64_t wanted) {
    return where + "rank " + std::to_string(global_ranks_[from]) + " sends " + std::to_string(sent) +
        " bytes to rank " + std::to_string(global_ranks_[to]) + ", which expects " +
        std::to_string(wanted) + ", in " + call(0);
  };
  for (int p = 0; p < size(); ++p) {
    Descriptor& from = descriptor(p, seq);
    const auto sent_to = [&](int q) { return spans(from)[from.n_in == 1 ? 0 : q].bytes; };
    switch (op.info.op) {
      case Op::kAllGather: {
        const uint64_t wanted = expected(descriptor(rank_, seq))[p]; // the same list on every rank
        if (sent_to(0) != wanted) {
          return differ(p, sent_to(0), rank_, wanted);
        }
        break;
      }
      case Op::kReduceScatter:
        if (spans(from)[p].bytes != from.out.bytes) {
          return differ(p, spans(from)[p].bytes, p, from.out.bytes);
        }
        break;
      case Op::kGather: {
        const uint64_t wanted = expected(descriptor(op.info.root, seq))[p];
        if (sent_to(0) != wanted) {
          return differ(p, sent_to(0), op.info.root, wanted);
        }
        break;
      }
      case Op::kScatter: {
        Descriptor& root = descriptor(op.info.root, seq);
        if (spans(root)[p].bytes != from.out.bytes) {
          return differ(op.info.root, spans(root)[p].bytes, p, from.out.bytes);
        }
        break;
      }
      case Op::kAllToAll:
        for (int q = 0; q < size(); ++q) {
          if (sent_to(q) != expected(descriptor(q, seq))[p]) {
            return differ(p, sent_to(q), q, expected(descriptor(q, seq))[p]);
          }
        }
        break;
      default:
        break;
    }
  }
  return "";
}

// Reduces elements [lo, hi) of every rank's span `span` into `outputs` (each at element 0). The programs
// [first_program, first_program + n_programs) divide `part_numel` elements from `part_base` on.
void Group::execute_reduction(
    Collective& op, int64_t lo, int64_t hi, int64_t part_base, int64_t part_numel, size_t first_program,
    size_t n_programs, int span, c10::ArrayRef<char*> outputs) {
  const auto item = static_cast<int64_t>(c10::elementSize(op.info.dtype));
  std::vector<const void*> inputs(size());
  std::vector<double> factors(size());
  std::vector<void*> results(outputs.size());
  for (size_t i = 0; i < n_programs; ++i) {
    const int64_t n = static_cast<int64_t>(n_programs);
    const int64_t begin = std::max(lo, part_base + part_numel * static_cast<int64_t>(i) / n);
    const int64_t end = std::min(hi, part_base + part_numel * static_cast<int64_t>(i + 1) / n);
    if (begin >= end) {
      continue;
    }
    for (int r = 0; r < size(); ++r) {
      Descriptor& d = descriptor(r, op.info.seq);
      inputs[r] = at(r, spans(d)[span]) + begin * item;
      factors[r] = d.factor;
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      results[o] = outputs[o] + begin * item;
    }
    ReduceArgs args;
    args.inputs = inputs.data();
    args.outputs = results.data();
    args.n_outputs = results.size();
    args.numel = end - begin;
    args.program = &op.plan->programs[first_program + i];
    args.dtype = op.info.dtype;
    args.reduction = op.info.reduction;
    args.divisor = size();
    args.factors = factors.data();
    args.fp32_accumulation = op.fp32_accumulation;
    reduce(args);
  }
}

// Every rank computes the same times, from all descriptors and the end of the group's operation before.
void Group::keep_time(Collective& op) {
  int64_t cost = 0;
  int64_t start = ended_ns_;
  for (int r = 0; r < size(); ++r) {
    const Descriptor& d = descriptor(r, op.info.seq);
    start = std::max(start, d.ready_ns);
    cost = std::max(cost, d.cost_ns);
  }
  op.info.start_ns = start;
  op.info.end_ns = ended_ns_ = start + cost;
  op.info.algorithm = descriptor(0, op.info.seq).algorithm;
}

void Group::execute(Collective& op) {
  const uint64_t seq = op.info.seq;
  const int n = size();
  keep_time(op);
  const auto pull = [&](int from, int span, const Buffer& to) {
    Descriptor& d = descriptor(from, seq);
    const Span& source = spans(d)[d.n_in == 1 ? 0 : span];
    char* data = at(from, source);
    if (source.bytes > 0 && data != to.data) {
      std::memcpy(to.data, data, source.bytes);
    }
  };
  switch (op.info.op) {
    case Op::kBarrier:
      break;
    case Op::kAllGather:
      for (int i = 0; i < n; ++i) { // each rank begins at itself, so that they do not queue up at one
        const int p = (rank_ + i) % n;
        pull(p, 0, op.out[p]);
      }
      break;
    case Op::kAllToAll:
      for (int i = 0; i < n; ++i) {
        const int p = (rank_ + i) % n;
        pull(p, rank_, op.out[p]);
      }
      break;
    case Op::kBroadcast:
      if (rank_ != op.info.root) {
        pull(op.info.root, 0, op.out[0]);
      }
      break;
    case Op::kGather:
      if (rank_ == op.info.root) {
        for (int p = 0; p < n; ++p) {
          pull(p, 0, op.out[p]);
        }
      }
      break;
    case Op::kScatter:
      pull(op.info.root, rank_, op.out[0]);
      break;
    case Op::kReduceScatter: {
      const size_t k = std::max<size_t>(op.plan->programs.size() / n, 1);
      const size_t first = op.plan->programs.size() == 1 ? 0 : static_cast<size_t>(rank_) * k;
      const auto numel = static_cast<int64_t>(op.out[0].bytes / c10::elementSize(op.info.dtype));
      char* output = op.out[0].data;
      execute_reduction(op, 0, numel, -op.plan_offset, op.plan_numel, first, k, rank_, output);
      break;
    }
    case Op::kAllReduce:
    case Op::kReduce: {
      const auto numel = static_cast<int64_t>(op.in[0].bytes / c10::elementSize(op.info.dtype));
      const size_t k = op.plan->programs.size();
      const bool everyone = op.info.op == Op::kAllReduce;
      if (op.small) {
        if (everyone || rank_ == op.info.root) {
          char* output = op.out[0].data;
          execute_reduction(op, 0, numel, -op.plan_offset, op.plan_numel, 0, k, 0, output);
        }
        break;
      }
      const int64_t line = std::max<int64_t>(kLine / static_cast<int64_t>(c10::elementSize(op.info.dtype)), 1);
      const int64_t slice = ((numel + n - 1) / n + line - 1) / line * line;
      c10::SmallVector<char*, 16> outputs;
      for (int i = 0; i < n; ++i) {
        const int p = (rank_ + i) % n;
        if (everyone || p == op.info.root) {
          outputs.push_back(at(p, descriptor(p, seq).out));
        }
      }
      const int64_t lo = std::min(numel, slice * rank_);
      execute_reduction(op, lo, std::min(numel, lo + slice), -op.plan_offset, op.plan_numel, 0, k, 0,
          outputs);
      break;
    }
    case Op::kSend:
    case Op::kRecv:
      break; // messages have channels of their own
  }
  descriptor(rank_, seq).departed.store(seq + 1, std::memory_order_release);
  const uint64_t count = central_->departed[seq % kSlots].value.fetch_add(1) + 1;
  if (count == static_cast<uint64_t>(n) * (seq / kSlots + 1)) {
    ring_all();
  }
}

bool Group::must_wait_for_departures(const Collective& op) const {
  if (op.small) {
    return false; // peers read my descriptor, which stays until its slot comes round again
  }
  const bool root = rank_ == op.info.root;
  switch (op.info.op) {
    case Op::kBarrier:
      return false;
    case Op::kBroadcast:
    case Op::kScatter:
      return root;
    default:
      return true;
  }
}

void Group::finish(Collective& op) {
  if (op.shared_out != nullptr && op.shared_out != op.out[0].data) {
    std::memcpy(op.out[0].data, op.shared_out, op.out[0].bytes);
  }
}

bool Group::post_collectives() {
  const size_t before = posted_;
  while (posted_ < queue_.size() && can_post(*queue_[posted_])) {
    post(*queue_[posted_++]);
  }
  return posted_ != before;
}

bool Group::progress_collectives(std::vector<Ended>& ended) {
  bool moved = post_collectives();
  while (executed_ < posted_ && arrived(queue_[executed_]->info.seq)) {
    Collective& op = *queue_[executed_];
    const std::string mismatch = find_mismatch(op);
    if (!mismatch.empty()) {
      fail({Failure::kMismatch, mismatch}, false, ended);
      return true;
    }
    execute(op);
    ++executed_;
    moved = true;
  }
  while (executed_ > 0) {
    Collective& op = *queue_.front();
    if (must_wait_for_departures(op) && !all_departed(op.info.seq)) {
      break;
    }
    finish(op);
    staged_ -= op.staged ? 1 : 0;
    end(op, ended);
    queue_.pop_front();
    --posted_;
    --executed_;
    moved = true;
  }
  return moved;
}

} // namespace neuron
