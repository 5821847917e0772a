// Messages. A sender posts where its data stands in a channel of its own block; the receiver finds the first
// entry of the wanted tag, copies the data straight out of the sender's memory and marks the entry taken.
#include <algorithm>
#include <cstring>

#include "arena.h"
#include "distributed/group.h"

namespace neuron {
bool Group::progress_messages(std::vector<Ended>& ended) {
  const bool reaped = reap_sends(ended);
  const bool posted = unsent_count_ > 0 && post_sends(ended);
  const bool matched = !recvs_.empty() && match_recvs(ended);
  return reaped || posted || matched;
}

bool Group::post_sends(std::vector<Ended>& ended) {
  bool moved = false;
  for (int dst = 0; dst < size(); ++dst) {
    auto& waiting = unsent_[dst];
    while (!waiting.empty()) {
      ChannelEntry* entries = channel(rank_, dst);
      ChannelEntry* entry = std::find_if(entries, entries + kChannelEntries, [](const ChannelEntry& e) {
        return e.state.load(std::memory_order_acquire) == ChannelEntry::kFree;
      });
      if (entry == entries + kChannelEntries) {
        break;
      }
      std::unique_ptr<Send> op = std::move(waiting.front());
      waiting.pop_front();
      --unsent_count_;
      const char* data = op->data.data;
      if (op->info.eager) {
        op->bounce = Staging(process_.arena(), op->data.bytes);
        if (op->data.bytes > 0) {
          std::memcpy(op->bounce.data(), data, op->data.bytes);
        }
        data = op->bounce.data();
      }
      entry->tag = op->info.tag;
      entry->id = op->info.seq;
      entry->data = {process_.arena().offset(data), op->data.bytes};
      entry->numel = op->info.numel;
      entry->dtype = op->info.dtype;
      entry->eager = op->info.eager;
      entry->leaves_ns = op->info.start_ns;
      entry->cost_ns = op->info.cost_ns;
      entry->state.store(ChannelEntry::kPosted, std::memory_order_release);
      ring(dst);
      op->entry = entry;
      if (op->info.eager) {
        end(*op, ended);
      }
      sent_.push_back(std::move(op));
      moved = true;
    }
  }
  return moved;
}

bool Group::reap_sends(std::vector<Ended>& ended) {
  bool moved = false;
  for (size_t i = 0; i < sent_.size();) {
    Send& op = *sent_[i];
    if (op.entry->state.load(std::memory_order_acquire) != ChannelEntry::kTaken) {
      ++i;
      continue;
    }
    if (!op.info.eager) {
      op.info.start_ns = op.entry->start_ns;
      op.info.end_ns = op.entry->end_ns;
    }
    op.entry->state.store(ChannelEntry::kFree, std::memory_order_release);
    if (!op.info.eager) {
      end(op, ended);
    }
    sent_.erase(sent_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

ChannelEntry* Group::find_posted(int src, int32_t tag) const {
  ChannelEntry* entries = channel(src, rank_);
  ChannelEntry* oldest = nullptr;
  // Twice: while the first look goes on, the sender may post one behind it and then a later one before it.
  // Messages are posted in order, so what a second look does not find is not older than what the first found.
  for (int look = 0; look < 2 && (look == 0 || oldest != nullptr); ++look) {
    for (ChannelEntry* e = entries; e < entries + kChannelEntries; ++e) {
      if (e->state.load(std::memory_order_acquire) == ChannelEntry::kPosted && e->tag == tag &&
          (oldest == nullptr || e->id < oldest->id)) {
        oldest = e;
      }
    }
  }
  return oldest;
}

bool Group::match_recvs(std::vector<Ended>& ended) {
  bool moved = false;
  // Receives that found nothing. A later one that could take the same message must not overtake it, though
  // the message may arrive while this pass goes on.
  std::vector<std::pair<int, int32_t>> waiting;
  const auto must_wait = [&](const Recv& op) {
    return std::any_of(waiting.begin(), waiting.end(), [&](const auto& first) {
      return first.second == op.info.tag && (first.first < 0 || op.src < 0 || first.first == op.src);
    });
  };
  for (auto it = recvs_.begin(); it != recvs_.end();) {
    Recv& op = **it;
    if (must_wait(op)) {
      ++it;
      continue;
    }
    int src = op.src;
    ChannelEntry* entry = nullptr;
    if (src >= 0) {
      entry = find_posted(src, op.info.tag);
    } else {
      for (src = 0; src < size() && entry == nullptr; ++src) {
        entry = find_posted(src, op.info.tag);
      }
      --src;
    }
    if (entry == nullptr) {
      waiting.emplace_back(op.src, op.info.tag);
      ++it;
      continue;
    }
    if (entry->data.bytes != op.data.bytes || entry->dtype != op.info.dtype) {
      OpInfo sent = op.info;
      sent.op = Op::kSend;
      sent.numel = entry->numel;
      sent.dtype = entry->dtype;
      sent.root = global_ranks_[rank_];
      OpInfo wanted = op.info;
      wanted.root = global_ranks_[src];
      fail({Failure::kMismatch,
            "neuron: ranks disagree in group '" + name_ + "': rank " + std::to_string(global_ranks_[src]) +
                " called " + sent.describe() + "; rank " + std::to_string(global_ranks_[rank_]) +
                " called " + wanted.describe()},
           true, ended);
      return true;
    }
    if (entry->data.bytes > 0) {
      std::memcpy(op.data.data, at(src, entry->data), entry->data.bytes);
    }
    op.info.seq = entry->id;
    op.info.root = src;
    op.info.start_ns = std::max(op.info.ready_ns, entry->leaves_ns);
    op.info.end_ns = entry->eager ? std::max(op.info.ready_ns, entry->leaves_ns + entry->cost_ns)
                                  : op.info.start_ns + entry->cost_ns;
    entry->start_ns = op.info.start_ns;
    entry->end_ns = op.info.end_ns;
    entry->state.store(ChannelEntry::kTaken, std::memory_order_release);
    ring(src);
    end(op, ended);
    it = recvs_.erase(it);
    moved = true;
  }
  return moved;
}

} // namespace neuron
