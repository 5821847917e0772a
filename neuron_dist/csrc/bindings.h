#pragma once

#include <pybind11/pybind11.h>

namespace neuron {

void bind_device(pybind11::module_& m); // device/bind_device.cpp
void bind_distributed(pybind11::module_& m); // distributed/bind_distributed.cpp

} // namespace neuron
