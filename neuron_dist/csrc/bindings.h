#pragma once

#include <pybind11/pybind11.h>

#include "simulation/roofline.h"

namespace neuron {

void bind_device(pybind11::module_& m); // device/bind_device.cpp
void bind_memory_history(pybind11::module_& m); // device/bind_memory_history.cpp
void bind_distributed(pybind11::module_& m); // distributed/bind_distributed.cpp
void bind_simulation(pybind11::module_& m); // simulation/bind_simulation.cpp

// From the roofline's numbers by name, as neuron_dist.simulation.roofline gives them.
Rates rates_from(const pybind11::dict& given);

} // namespace neuron
