#include "distributed/group.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "arena.h"

namespace neuron {

Group::Group(
    std::string name, int rank, std::vector<int> global_ranks, std::vector<Peer*> peers,
    const std::vector<uint64_t>& blocks, Peers& process)
    : name_(std::move(name)),
      rank_(rank),
      global_ranks_(std::move(global_ranks)),
      peers_(std::move(peers)),
      process_(process),
      layout_(peers_.size()),
      // What everybody reads of everybody should stay within a core's cache.
      inline_limit_(std::min<uint64_t>(kInlineBytes, 64 * 1024 / peers_.size())),
      next_message_(peers_.size(), 0),
      channel_free_ns_(peers_.size(), 0),
      unsent_(peers_.size()) {
  for (int r = 0; r < size(); ++r) {
    arenas_.push_back(peers_[r] == nullptr ? process.arena().base() : peers_[r]->arena);
    blocks_.push_back(arenas_[r] + blocks[r]);
  }
  central_ = reinterpret_cast<Central*>(blocks_[0]);
}

bool Group::is_shared(const void* data) const {
  return process_.arena().contains(data);
}

std::string Group::describe_rank(int rank) const {
  if (peers_[rank] != nullptr) {
    return peers_[rank]->describe();
  }
  return "rank " + std::to_string(global_ranks_[rank]) + " (this process)";
}

void Group::ring(int rank) {
  if (peers_[rank] != nullptr) {
    peers_[rank]->block->doorbell.ring();
  }
}

void Group::ring_all() {
  for (int r = 0; r < size(); ++r) {
    ring(r);
  }
}

void Group::enqueue(AnyOperation op, const std::function<void(OpInfo&)>& started) {
  std::lock_guard<std::mutex> lock(inbox_mutex_);
  open_.fetch_add(1, std::memory_order_acq_rel);
  std::visit(
      [&](auto& ptr) {
        using T = std::decay_t<decltype(*ptr)>;
        if constexpr (std::is_same_v<T, Collective>) {
          ptr->info.seq = next_seq_.fetch_add(1);
        } else if constexpr (std::is_same_v<T, Send>) {
          ptr->info.seq = next_message_[ptr->dst]++;
          // What peers cannot reach is copied; so is what I send to myself, for my receive may come later.
          ptr->info.eager = ptr->data.bytes <= kEagerBytes || !is_shared(ptr->data.data) || ptr->dst == rank_;
          // One message leaves after the other.
          int64_t& free = channel_free_ns_[ptr->dst];
          ptr->info.start_ns = std::max(ptr->info.ready_ns, free);
          ptr->info.end_ns = free = ptr->info.start_ns + ptr->info.cost_ns;
        }
        started(ptr->info);
      },
      op);
  inbox_.push_back(std::move(op));
  inbox_full_.store(true, std::memory_order_release);
}

void Group::take_inbox(std::vector<Ended>& ended) {
  if (!inbox_full_.load(std::memory_order_acquire)) {
    return;
  }
  std::vector<AnyOperation> taken;
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    taken.swap(inbox_);
    inbox_full_.store(false, std::memory_order_release);
  }
  for (AnyOperation& any : taken) {
    std::visit(
        [&](auto& op) {
          using T = std::decay_t<decltype(*op)>;
          if (failure_) {
            const Failure again{
                failure_->kind,
                "neuron: group '" + name_ +
                    "' cannot be used any more after its earlier failure; destroy it and make a new one. It was: " +
                    failure_->message};
            end(*op, ended, &again);
          } else if constexpr (std::is_same_v<T, Collective>) {
            queue_.push_back(std::move(op));
          } else if constexpr (std::is_same_v<T, Send>) {
            ++unsent_count_;
            unsent_[op->dst].push_back(std::move(op));
          } else {
            recvs_.push_back(std::move(op));
          }
        },
        any);
  }
}

void Group::arrive(std::vector<Ended>& ended) {
  take_inbox(ended);
  if (!failure_) {
    post_collectives();
    progress_messages(ended);
  }
}

bool Group::progress(std::vector<Ended>& ended) {
  take_inbox(ended);
  if (failure_) {
    return false;
  }
  const bool collectives = progress_collectives(ended);
  const bool messages = progress_messages(ended);
  return collectives || messages;
}

void Group::end(Operation& op, std::vector<Ended>& ended, const Failure* failure) {
  open_.fetch_sub(1, std::memory_order_acq_rel);
  ended.push_back(Ended{std::move(op), failure ? std::optional<Failure>(*failure) : std::nullopt});
}

TimePoint Group::next_deadline() const {
  TimePoint first = TimePoint::max();
  const auto consider = [&](const auto& ops) {
    for (const auto& op : ops) {
      first = std::min(first, op->deadline);
    }
  };
  if (!queue_.empty()) {
    first = std::min(first, queue_.front()->deadline);
  }
  consider(recvs_);
  for (const auto& send : sent_) {
    if (!send->info.eager) {
      first = std::min(first, send->deadline);
    }
  }
  for (const auto& sends : unsent_) {
    consider(sends);
  }
  return first;
}

std::optional<Failure> Group::poison() const {
  if (central_->poison.load(std::memory_order_acquire) != 2) {
    return std::nullopt;
  }
  return Failure{static_cast<Failure::Kind>(central_->poison_kind), central_->poison_text};
}

void Group::fail(const Failure& failure, bool tell_peers, std::vector<Ended>& ended) {
  if (failure_) {
    return;
  }
  failure_ = failure;
  failed_.store(true, std::memory_order_release);
  uint32_t none = 0;
  if (tell_peers && central_->poison.compare_exchange_strong(none, 1)) {
    const std::string text = failure.message + " [reported by rank " +
        std::to_string(global_ranks_[rank_]) + "]";
    central_->poison_kind = failure.kind;
    std::strncpy(central_->poison_text, text.c_str(), sizeof(central_->poison_text) - 1);
    central_->poison.store(2, std::memory_order_release);
    ring_all();
  }
  const auto end_all = [&](auto& ops) {
    for (auto& op : ops) {
      end(*op, ended, &failure);
    }
    ops.clear();
  };
  end_all(queue_);
  posted_ = executed_ = staged_ = 0;
  end_all(recvs_);
  for (auto& send : sent_) {
    if (!send->info.eager) { // an eager one has ended already
      end(*send, ended, &failure);
    }
  }
  sent_.clear();
  for (auto& sends : unsent_) {
    end_all(sends);
  }
  unsent_count_ = 0;
}

std::vector<int> Group::missing(uint64_t seq) const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (descriptor(r, seq).posted.load(std::memory_order_acquire) < seq + 1) {
      ranks.push_back(r);
    }
  }
  return ranks;
}

bool Group::check_health(TimePoint now, std::vector<Ended>& ended) {
  if (failure_) {
    return false;
  }
  if (auto found = poison()) {
    fail(*found, false, ended);
    return true;
  }
  const auto lost = [&](int rank) {
    return peers_[rank] != nullptr && peers_[rank]->ended.load(std::memory_order_acquire);
  };
  const auto fail_lost = [&](int rank, const Operation& op) {
    fail({Failure::kPeerLost,
          "neuron: " + describe_rank(rank) + " during " + op.info.describe() + " (seq " +
              std::to_string(op.info.seq) + ") of group '" + name_ + "'"},
         false, ended);
    return true;
  };
  if (!queue_.empty()) {
    Collective& op = *queue_.front();
    const uint64_t seq = op.info.seq;
    for (int r = 0; r < size(); ++r) {
      const Descriptor& d = descriptor(r, seq);
      const bool here = d.posted.load(std::memory_order_acquire) >= seq + 1;
      const bool done = d.departed.load(std::memory_order_acquire) >= seq + 1;
      if (lost(r) && (!here || (executed_ > 0 && !done))) {
        return fail_lost(r, op);
      }
    }
    if (now >= op.deadline) {
      std::vector<int> waiting_for = missing(seq);
      std::erase(waiting_for, rank_); // not even posted: a peer holds up the slot
      const char* what = "has not arrived";
      if (waiting_for.empty()) {
        what = "has not done its share";
        for (int r = 0; r < size(); ++r) {
          if (descriptor(r, seq).departed.load(std::memory_order_acquire) < seq + 1) {
            waiting_for.push_back(r);
          }
        }
      }
      fail({Failure::kTimeout, timeout_message(op, waiting_for, what)}, true, ended);
      return true;
    }
  }
  for (const auto& recv : recvs_) {
    if (recv->src >= 0 && lost(recv->src)) {
      return fail_lost(recv->src, *recv);
    }
    if (now >= recv->deadline) {
      std::vector<int> waiting_for;
      for (int r = 0; r < size(); ++r) {
        if (r == recv->src || (recv->src < 0 && r != rank_)) {
          waiting_for.push_back(r);
        }
      }
      fail({Failure::kTimeout, timeout_message(*recv, waiting_for, "has not sent")}, true, ended);
      return true;
    }
  }
  const auto check_send = [&](const Send& send) {
    if (lost(send.dst)) {
      return fail_lost(send.dst, send);
    }
    if (now >= send.deadline) {
      fail({Failure::kTimeout, timeout_message(send, {send.dst}, "has not received")}, true, ended);
      return true;
    }
    return false;
  };
  for (const auto& send : sent_) {
    if (!send->info.eager && check_send(*send)) {
      return true;
    }
  }
  for (const auto& sends : unsent_) {
    if (!sends.empty() && check_send(*sends.front())) {
      return true;
    }
  }
  return false;
}

std::string Group::timeout_message(
    const Operation& op, const std::vector<int>& waiting_for, const char* what) const {
  constexpr size_t kNamed = 4; // a hung job of 64 ranks should not print 64 stacks
  std::ostringstream out;
  out << "neuron: Timed out waiting " << op.timeout.count() << "ms for " << op.info.describe() << " (seq " << op.info.seq << ") of group '"
      << name_ << "' on rank " << global_ranks_[rank_] << ".";
  std::ostringstream details;
  for (size_t i = 0; i < waiting_for.size(); ++i) {
    const int r = waiting_for[i];
    if (i >= kNamed) {
      out << (i == kNamed ? " Also: rank " : ", ") << global_ranks_[r];
      continue;
    }
    out << " " << describe_rank(r) << " " << what << ".";
    Peer* peer = peers_[r];
    if (peer == nullptr) {
      continue;
    }
    details << "\n  last operations of rank " << peer->global_rank << ":";
    const auto lines = peer->block->flight.describe(3);
    for (const auto& line : lines) {
      details << "\n    " << line;
    }
    if (lines.empty()) {
      details << " none";
    }
    const std::string stack = process_.python_stack(*peer, std::chrono::milliseconds(300));
    details << "\n  Python stack of rank " << peer->global_rank << ": "
            << (stack.empty() ? "no answer (stopped, or busy outside Python)" : "\n" + stack);
  }
  if (op.info.op != Op::kSend && op.info.op != Op::kRecv) {
    out << " Arrived:";
    bool any = false;
    const auto absent = missing(op.info.seq);
    for (int r = 0; r < size(); ++r) {
      if (std::find(absent.begin(), absent.end(), r) == absent.end()) {
        out << (any ? ", " : " rank ") << global_ranks_[r];
        any = true;
      }
    }
    out << (any ? "." : " nobody.");
  }
  return out.str() + details.str();
}

} // namespace neuron
