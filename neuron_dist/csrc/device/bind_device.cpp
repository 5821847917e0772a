#include "bindings.h"

namespace neuron {

void bind_device(pybind11::module_& m) {}

} // namespace neuron
