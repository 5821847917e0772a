#include "simulation/trace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <c10/util/Exception.h>

namespace neuron {
namespace {

constexpr uint64_t kGrowth = 4 << 20; // bytes that the file grows by: what a killed run leaves unused, at most

} // namespace

Trace::Trace(const std::string& path, const std::string& header, uint64_t most_bytes)
    : path_(path), most_(most_bytes / sizeof(Record)) {
  // Not truncated: an earlier run's process may still have the old file mapped.
  (void)!unlink(path.c_str());
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  TORCH_CHECK(fd_ >= 0, "neuron: the trace ", path, " cannot be made: ", std::strerror(errno));
  // The file grows beneath one mapping, so a record never moves.
  void* mapped = mmap(nullptr, most_ * sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "neuron: the trace ", path, " cannot be mapped: ", std::strerror(errno));
  madvise(mapped, most_ * sizeof(Record), MADV_DONTFORK);
  base_ = static_cast<Record*>(mapped);
  text(Text::kHeader, header);
}

Trace::~Trace() {
  munmap(base_, most_ * sizeof(Record));
  (void)!ftruncate(fd_, static_cast<off_t>(used_ * sizeof(Record)));
  close(fd_);
}

Record* Trace::take(uint64_t slots) {
  if (C10_UNLIKELY(used_ + slots > grown_)) {
    const uint64_t wanted = std::min(most_, std::max(grown_ + kGrowth / sizeof(Record), used_ + slots));
    // Allocated, not only lengthened: a full disk must show here, not as a bus error at the first store.
    const bool room = used_ + slots <= wanted && posix_fallocate(fd_, 0, static_cast<off_t>(wanted * sizeof(Record))) == 0;
    if (!room) {
      if (!full_) {
        TORCH_WARN(
            "neuron: the trace ", path_, " is full at ", used_ * sizeof(Record),
            " bytes; the run goes on and its rest is not traced");
      }
      full_ = true;
      return nullptr;
    }
    grown_ = wanted;
  }
  Record* place = base_ + used_;
  used_ += slots;
  return place;
}

// Its first byte last: a record that has it is whole.
void Trace::publish(Record* place, const Record& record) {
  std::memcpy(reinterpret_cast<char*>(place) + 1, reinterpret_cast<const char*>(&record) + 1, sizeof(Record) - 1);
  std::atomic_ref<uint8_t>(reinterpret_cast<uint8_t&>(place->kind))
      .store(static_cast<uint8_t>(record.kind), std::memory_order_release);
}

Record* Trace::add(const Record& record) {
  Record* place = take(1);
  if (C10_LIKELY(place != nullptr)) {
    publish(place, record);
  }
  return place;
}

void Trace::text(Text flag, const std::string& text, Record fields) {
  const uint64_t slots = 1 + (text.size() + sizeof(Record) - 1) / sizeof(Record);
  Record* place = take(slots);
  if (place == nullptr) {
    return;
  }
  std::memcpy(static_cast<void*>(place + 1), text.data(), text.size());
  fields.kind = Kind::kText;
  fields.flag = static_cast<uint8_t>(flag);
  fields.a = text.size();
  publish(place, fields);
}

} // namespace neuron
