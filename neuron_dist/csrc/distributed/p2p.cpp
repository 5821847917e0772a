// Messages. A sender posts where its data stands in a channel of its own block; the receiver finds the first
// entry of the wanted tag, copies the data straight out of the sender's memory and marks the entry taken.
#include <algorithm>
#include <cstring>

#include "arena.h"
#include "distributed/group.h"

namespace neuron {
namespace {

// Up to here a message is copied out at once and the send is complete, as NCCL's and Gloo's small sends are.
constexpr uint64_t kEagerBytes = 64 * 1024;

} // namespace

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
      // What peers cannot reach is copied; so is what I send to myself, for my receive may come later.
      op->eager = op->data.bytes <= kEagerBytes || !is_shared(op->data.data) || dst == rank_;
      const char* data = op->data.data;
      if (op->eager) {
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
      entry->state.store(ChannelEntry::kPosted, std::memory_order_release);
      ring(dst);
      op->entry = entry;
      if (op->eager) {
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
    op.entry->state.store(ChannelEntry::kFree, std::memory_order_release);
    if (!op.eager) {
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
  for (ChannelEntry* e = entries; e < entries + kChannelEntries; ++e) {
    if (e->state.load(std::memory_order_acquire) == ChannelEntry::kPosted && e->tag == tag &&
        (oldest == nullptr || e->id < oldest->id)) {
      oldest = e;
    }
  }
  return oldest;
}

bool Group::match_recvs(std::vector<Ended>& ended) {
  bool moved = false;
  for (auto it = recvs_.begin(); it != recvs_.end();) {
    Recv& op = **it;
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
    entry->state.store(ChannelEntry::kTaken, std::memory_order_release);
    ring(src);
    end(op, ended);
    it = recvs_.erase(it);
    moved = true;
  }
  return moved;
}

} // namespace neuron
