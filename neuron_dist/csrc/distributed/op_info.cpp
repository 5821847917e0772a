#include "distributed/op_info.h"

#include <sstream>

namespace neuron {

const char* op_name(Op op) {
  static const char* names[] = {
      "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "gather",
      "scatter", "all_to_all", "barrier", "send", "recv"};
  return names[static_cast<int>(op)];
}

const char* reduction_name(Reduction reduction) {
  static const char* names[] = {
      "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", ""};
  return names[static_cast<int>(reduction)];
}

const char* dtype_name(c10::ScalarType dtype) {
  return c10::getDtypeNames(dtype).first.data();
}

std::string OpInfo::describe() const {
  std::ostringstream out;
  out << op_name(op) << "(";
  if (op != Op::kBarrier) {
    if (reduction != Reduction::kNone) {
      out << reduction_name(reduction) << ", ";
    }
    out << dtype_name(dtype);
    if (numel >= 0) {
      out << ", numel=" << numel;
    }
    if (op == Op::kSend || op == Op::kRecv) {
      out << (op == Op::kSend ? ", dst=" : ", src=");
      if (root < 0) {
        out << "any";
      } else {
        out << root;
      }
      out << ", tag=" << tag;
    } else if (root >= 0) {
      out << ", root=" << root;
    }
  }
  out << ")";
  return out.str();
}

} // namespace neuron
