// Writes a rank's trace: 80-byte records appended to a mapped file, each readable as soon as it is written, also
// after a kill. neuron_dist/simulation/trace.py describes the format and reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "simulation/names.h"

namespace neuron {

enum class Kind : uint8_t {
  kNone,
  kText,
  kKernel,
  kRecord,
  kWait,
  kHostWait,
  kIssue,
  kCollective,
  kMessage,
  kWorkWait,
  kStep,
  kMemory,
};

enum class Text : uint8_t { kHeader, kName, kGroup, kStream, kSite };

struct Record {
  Kind kind = Kind::kNone;
  uint8_t dtype = 0;
  uint8_t flag = 0;
  uint8_t flag2 = 0;
  Name name = 0;
  Name name2 = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int32_t stream = 0;
  int32_t group = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;
  uint64_t e = 0;
  uint64_t allocated = 0;
};
static_assert(sizeof(Record) == 80);

// Callers hold the clock's lock, except where it says otherwise.
class Trace {
 public:
  // Makes `path`, in place of another run's, and writes the header. Records beyond `most_bytes` are dropped,
  // with a warning. Throws c10::Error when the file cannot be made.
  Trace(const std::string& path, const std::string& header, uint64_t most_bytes);
  ~Trace(); // cuts the file to what was written

  // Where the record stands, to be completed later; nullptr when the trace is full.
  Record* add(const Record& record);
  void text(Text flag, const std::string& text, Record fields = {});

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  Record* take(uint64_t slots);
  static void publish(Record* place, const Record& record);

  const std::string path_;
  int fd_ = -1;
  Record* base_ = nullptr;
  uint64_t most_; // records
  uint64_t used_ = 0;
  uint64_t grown_ = 0; // records that the file has room for
  bool full_ = false;
};

} // namespace neuron
