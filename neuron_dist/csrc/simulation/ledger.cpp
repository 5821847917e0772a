#include "simulation/ledger.h"

#include <algorithm>
#include <cstring>

namespace neuron {
namespace {

int64_t overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) { // both merged
  int64_t both = 0;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    both += std::max<int64_t>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return both;
}

// Cuts to [start, end) and returns what reaches beyond the end.
std::vector<Interval> cut(std::vector<Interval>& intervals, int64_t start, int64_t end) {
  std::vector<Interval> beyond;
  for (Interval& i : intervals) {
    if (i.second > end) {
      beyond.emplace_back(std::max(i.first, end), i.second);
    }
    i.first = std::max(i.first, start);
    i.second = std::min(i.second, end);
  }
  std::erase_if(intervals, [](const Interval& i) { return i.second <= i.first; });
  return beyond;
}

void append(std::vector<Interval>& to, std::vector<Interval> from) {
  to.insert(to.end(), from.begin(), from.end());
}

} // namespace

int64_t merge(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end());
  size_t kept = 0;
  int64_t total = 0;
  for (const Interval& i : intervals) {
    if (kept > 0 && i.first <= intervals[kept - 1].second) {
      Interval& last = intervals[kept - 1];
      total += std::max<int64_t>(0, i.second - last.second);
      last.second = std::max(last.second, i.second);
    } else {
      intervals[kept++] = i;
      total += i.second - i.first;
    }
  }
  intervals.resize(kept);
  return total;
}

Ledger::Ledger() : block_(new LedgerBlock{}) { // never freed: as long as the process
  open_.emplace_back();
}

void Ledger::move_to(LedgerBlock* block) {
  std::memcpy(static_cast<void*>(block), block_, sizeof(LedgerBlock));
  block_ = block;
}

void Ledger::computed(int32_t stream, int64_t start_ns, int64_t end_ns, uint64_t flops) {
  open_.back().figures.flops += flops;
  for (auto& [id, interval] : running_) {
    if (id == stream) {
      if (interval.second == start_ns) {
        interval.second = end_ns;
      } else {
        open_.back().compute.push_back(interval);
        interval = {start_ns, end_ns};
      }
      return;
    }
  }
  running_.emplace_back(stream, Interval{start_ns, end_ns});
}

uint64_t Ledger::communication_begins() {
  ++open_.back().pending;
  return step_under_way();
}

void Ledger::communication_ends(uint64_t step, int64_t start_ns, int64_t end_ns) {
  Open& open = at(step);
  --open.pending;
  open.communication.emplace_back(start_ns, end_ns);
}

void Ledger::communication_fails(uint64_t step) {
  --at(step).pending;
}

void Ledger::add_group(uint32_t group, const std::string& name, const std::vector<int>& ranks) {
  if (group >= LedgerBlock::kGroups || block_->ranks_used + ranks.size() > LedgerBlock::kRanks) {
    return;
  }
  GroupEntry& entry = block_->group[group];
  entry.first = block_->ranks_used;
  entry.size = static_cast<uint32_t>(ranks.size());
  std::copy(ranks.begin(), ranks.end(), block_->ranks + entry.first);
  block_->ranks_used += entry.size;
  block_->groups.store(group + 1, std::memory_order_release);
  rename_group(group, name);
}

void Ledger::rename_group(uint32_t group, const std::string& name) {
  if (group < block_->groups.load(std::memory_order_relaxed)) {
    GroupEntry& entry = block_->group[group];
    std::memset(entry.name, 0, sizeof(entry.name));
    std::memcpy(entry.name, name.data(), std::min(name.size(), sizeof(entry.name) - 1));
  }
}

void Ledger::count(
    uint32_t group, uint8_t op, int32_t root, const char* algorithm, uint64_t bytes, int64_t time_ns) {
  const uint32_t rows = block_->rows.load(std::memory_order_relaxed);
  TrafficRow* row = nullptr;
  for (uint32_t i = 0; i < rows && row == nullptr; ++i) {
    TrafficRow& each = block_->row[i];
    if (each.group == group && each.op == op && each.root == root &&
        std::memcmp(each.algorithm, algorithm, sizeof(each.algorithm)) == 0) {
      row = &each;
    }
  }
  if (row == nullptr) {
    const bool listed = group < LedgerBlock::kGroups && block_->group[group].size > 0;
    if (!listed || rows == LedgerBlock::kRows) {
      block_->unlisted.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    row = &block_->row[rows];
    *row = TrafficRow{group, root, op, {}, 0, 0, 0};
    std::memcpy(row->algorithm, algorithm, sizeof(row->algorithm));
    block_->rows.store(rows + 1, std::memory_order_release);
  }
  row->count += 1;
  row->bytes += bytes;
  row->time_ns += time_ns;
}

void Ledger::end_step(int64_t end_ns, uint64_t peak_bytes, void* tag) {
  Open& now = open_.back();
  for (auto& [id, interval] : running_) {
    now.compute.push_back(interval);
  }
  running_.clear();
  now.figures.step = step_under_way();
  now.figures.end_ns = end_ns;
  now.figures.peak_bytes = peak_bytes;
  now.tag = tag;
  now.over = true;
  open_.emplace_back();
  open_.back().figures.start_ns = end_ns;
}

bool Ledger::finished(StepFigures& figures, void*& tag) {
  Open& first = open_.front();
  if (!first.over || first.pending > 0) {
    return false;
  }
  StepFigures& f = first.figures;
  append(open_[1].compute, cut(first.compute, f.start_ns, f.end_ns));
  append(open_[1].communication, cut(first.communication, f.start_ns, f.end_ns));
  f.compute_ns = merge(first.compute);
  const int64_t communication = merge(first.communication);
  f.overlapped_ns = overlap(first.compute, first.communication);
  f.exposed_ns = communication - f.overlapped_ns;
  figures = f;
  tag = first.tag;
  const uint64_t steps = block_->steps.load(std::memory_order_relaxed);
  block_->step[steps % LedgerBlock::kSteps] = f;
  block_->steps.store(steps + 1, std::memory_order_release);
  open_.pop_front();
  ++first_open_;
  return true;
}

void Ledger::forget_tags() {
  for (Open& open : open_) {
    open.tag = nullptr;
  }
}

} // namespace neuron
