#include "distributed/peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include <c10/util/Exception.h>

#include "arena.h"
#include "distributed/process_state.h"

namespace neuron {
namespace {

constexpr uint64_t kMagic = 0x6e6575726f6e3031; // "neuron01": the layout of Hello and of the shared blocks
constexpr char kWantStack = 's';

struct Hello {
  uint64_t magic;
  uint64_t uid;
  int64_t pid;
  int64_t global_rank;
  uint64_t block_offset;
};

sockaddr_un abstract_address(uint64_t uid, socklen_t& length) {
  // An abstract name leaves no file behind, whatever happens to the process.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int n = std::snprintf(
      address.sun_path + 1, sizeof(address.sun_path) - 1, "neuron-dist-%016llx",
      static_cast<unsigned long long>(uid));
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

void send_hello(int socket, const Hello& hello, int fd) {
  iovec iov{const_cast<Hello*>(&hello), sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  TORCH_CHECK(
      sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(hello)),
      "neuron: cannot hand the arena's descriptor to a peer: ", std::strerror(errno));
}

// Waits until `deadline` for a peer's hello; returns its arena's descriptor, or -1.
int receive_hello(int socket, Hello& hello, TimePoint deadline) {
  pollfd p{socket, POLLIN, 0};
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (poll(&p, 1, static_cast<int>(std::max<int64_t>(left, 0))) <= 0) {
    return -1;
  }
  iovec iov{&hello, sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (n != static_cast<ssize_t>(sizeof(hello)) || hello.magic != kMagic || header == nullptr ||
      header->cmsg_type != SCM_RIGHTS) {
    return -1;
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return fd;
}

Peers* instance = nullptr;
pid_t instance_pid = 0;
std::mutex instance_mutex;

} // namespace

std::string Peer::describe() const {
  std::string text = "rank " + std::to_string(global_rank) + " (pid " + std::to_string(pid) + ")";
  if (ended.load(std::memory_order_acquire)) {
    return text + " " + ending;
  }
  char letter = '?';
  int code = 0;
  if (read_stat(pid, letter, code) && (letter == 'T' || letter == 't')) {
    text += " is stopped (SIGSTOP or a debugger)";
  }
  return text;
}

Peers& Peers::start(int device_index, int global_rank) {
  std::lock_guard<std::mutex> lock(instance_mutex);
  if (instance == nullptr || instance_pid != getpid()) {
    instance = new Peers(device_index, global_rank); // ends with the process
    instance_pid = getpid();
    start_thread([peers = instance] { peers->watch(); });
  }
  return *instance;
}

Peers* Peers::running() {
  std::lock_guard<std::mutex> lock(instance_mutex);
  return instance_pid == getpid() ? instance : nullptr;
}

Peers::Peers(int device_index, int global_rank)
    : arena_(&Arena::get(device_index)),
      block_(new (arena_->take_control(sizeof(ProcessBlock))) ProcessBlock()) {
  std::random_device random;
  self_address_.uid = (static_cast<uint64_t>(random()) << 32) | random();
  self_address_.pid = getpid();
  self_address_.global_rank = global_rank;
  char link[64] = {};
  (void)!readlink("/proc/self/ns/net", link, sizeof(link) - 1);
  self_address_.host = first_line("/proc/sys/kernel/random/boot_id") + "/" + link;
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  self_address_.hostname = name;

  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = abstract_address(self_address_.uid, length);
  TORCH_CHECK(
      listener_ >= 0 &&
          bind(listener_, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
          listen(listener_, 1024) == 0,
      "neuron: cannot open a Unix socket for the peers: ", std::strerror(errno));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  TORCH_CHECK(wake_ >= 0, "neuron: eventfd failed: ", std::strerror(errno));
}

Peer* Peers::find(uint64_t uid) {
  const auto it = peers_.find(uid);
  return it == peers_.end() ? nullptr : it->second.get();
}

Peer* Peers::add(
    uint64_t uid, pid_t pid, int global_rank, uint64_t block_offset, int arena_fd, int socket) {
  char* base = map_peer_arena(arena_fd);
  close(arena_fd);
  auto peer = std::make_unique<Peer>();
  peer->uid = uid;
  peer->pid = pid;
  peer->global_rank = global_rank;
  peer->arena = base;
  peer->block = reinterpret_cast<ProcessBlock*>(base + block_offset);
  peer->socket = socket;
  peer->pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); // -1 on Linux before 5.3
  Peer* raw = peer.get();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    peers_.emplace(uid, std::move(peer));
  }
  changed_.notify_all();
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  return raw;
}

std::vector<Peer*> Peers::connect(const std::vector<Address>& addresses, TimePoint deadline) {
  const Hello mine{
      kMagic, self_address_.uid, self_address_.pid, self_address_.global_rank,
      arena_->offset(block_)};
  std::vector<Peer*> found(addresses.size(), nullptr);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const Address& to = addresses[i];
    if (to.uid == self_address_.uid) {
      continue;
    }
    const auto unreachable = [&](const char* what) {
      TORCH_CHECK_WITH(
          DistBackendError, false, "neuron: rank ", to.global_rank, " (pid ", to.pid, ") ", what,
          " while the process group was being set up");
    };
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (Peer* peer = find(to.uid)) {
        found[i] = peer;
        continue;
      }
      if (to.uid < self_address_.uid) { // of two strangers the one with the smaller uid calls
        while (find(to.uid) == nullptr) {
          changed_.wait_for(lock, std::chrono::milliseconds(100));
          char state = '?';
          int code = 0;
          const bool there = read_stat(static_cast<pid_t>(to.pid), state, code) && state != 'Z';
          if (find(to.uid) == nullptr && (!there || Clock::now() > deadline)) {
            lock.unlock();
            unreachable(there ? "did not connect" : "died");
          }
        }
        found[i] = find(to.uid);
        continue;
      }
    }
    const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    TORCH_CHECK(s >= 0, "neuron: cannot open a Unix socket: ", std::strerror(errno));
    socklen_t length = 0;
    const sockaddr_un address = abstract_address(to.uid, length);
    if (::connect(s, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      close(s);
      unreachable("is not there any more");
    }
    send_hello(s, mine, arena_->fd());
    Hello theirs{};
    const int fd = receive_hello(s, theirs, deadline);
    if (fd < 0) {
      close(s);
      unreachable("did not answer");
    }
    found[i] = add(
        theirs.uid, static_cast<pid_t>(theirs.pid), static_cast<int>(theirs.global_rank),
        theirs.block_offset, fd, s);
  }
  return found;
}

void Peers::accept_one() {
  const int s = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (s < 0) {
    return;
  }
  Hello theirs{};
  const int fd = receive_hello(s, theirs, Clock::now() + std::chrono::seconds(1));
  if (fd < 0) { // not one of ours, or it died between connecting and greeting
    close(s);
    return;
  }
  const Hello mine{
      kMagic, self_address_.uid, self_address_.pid, self_address_.global_rank,
      arena_->offset(block_)};
  send_hello(s, mine, arena_->fd());
  add(theirs.uid, static_cast<pid_t>(theirs.pid), static_cast<int>(theirs.global_rank),
      theirs.block_offset, fd, s);
}

void Peers::read_from(Peer& peer) {
  char message = 0;
  const ssize_t n = recv(peer.socket, &message, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (n == 1 && message == kWantStack) {
    answer_stack_request();
    return;
  }
  peer.ending = how_it_ended(peer.pid, peer.pidfd);
  peer.ended.store(true, std::memory_order_seq_cst);
  std::function<void()> callback;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    close(peer.socket);
    close(peer.pidfd);
    peer.socket = peer.pidfd = -1;
    callback = on_ending_;
  }
  if (callback) {
    callback();
  }
}

void Peers::watch() {
  std::vector<pollfd> fds;
  std::vector<Peer*> who;
  while (true) {
    fds.assign({{listener_, POLLIN, 0}, {wake_, POLLIN, 0}});
    who.clear();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& [uid, peer] : peers_) {
        if (peer->socket >= 0) {
          fds.push_back({peer->socket, POLLIN, 0});
          who.push_back(peer.get());
        }
      }
    }
    if (poll(fds.data(), fds.size(), -1) < 0) {
      continue; // EINTR
    }
    uint64_t count = 0;
    (void)!read(wake_, &count, sizeof(count));
    if (fds[0].revents != 0) {
      try {
        accept_one();
      } catch (const c10::Error& e) {
        TORCH_WARN(e.what_without_backtrace()); // the peer that called reports it as well
      }
    }
    for (size_t i = 0; i < who.size(); ++i) {
      if (fds[i + 2].revents != 0) {
        read_from(*who[i]);
      }
    }
  }
}

std::vector<const Peer*> Peers::met() {
  std::vector<const Peer*> found;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [uid, peer] : peers_) {
    found.push_back(peer.get());
  }
  std::sort(found.begin(), found.end(), [](const Peer* a, const Peer* b) { return a->global_rank < b->global_rank; });
  return found;
}

std::string Peers::python_stack(Peer& peer, std::chrono::milliseconds patience) {
  if (peer.ended.load()) {
    return {};
  }
  const uint32_t ticket = peer.block->stack_wanted.fetch_add(1) + 1;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (peer.socket < 0 || send(peer.socket, &kWantStack, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
      return {};
    }
  }
  const auto deadline = Clock::now() + patience;
  while (static_cast<int32_t>(peer.block->stack_ready.load() - ticket) < 0) {
    if (Clock::now() > deadline) {
      return {};
    }
    usleep(1000);
  }
  return std::string(peer.block->stack_text, strnlen(peer.block->stack_text, sizeof(block_->stack_text)));
}

void Peers::answer_stack_request() {
  const uint32_t ticket = block_->stack_wanted.load();
  std::function<std::string()> provider;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    provider = stack_provider_;
  }
  if (!provider) {
    return;
  }
  // On a thread of its own: the GIL may be held for long, and this thread must go on watching the peers.
  start_thread([this, provider, ticket] {
    const std::string text = provider();
    static std::mutex writing;
    std::lock_guard<std::mutex> lock(writing);
    const size_t n = std::min(text.size(), sizeof(block_->stack_text) - 1);
    std::memcpy(block_->stack_text, text.data(), n);
    block_->stack_text[n] = 0;
    block_->stack_ready.store(ticket);
  });
}

void Peers::set_stack_provider(std::function<std::string()> provider) {
  std::lock_guard<std::mutex> lock(mutex_);
  stack_provider_ = std::move(provider);
}

void Peers::set_on_ending(std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(mutex_);
  on_ending_ = std::move(callback);
}

} // namespace neuron
