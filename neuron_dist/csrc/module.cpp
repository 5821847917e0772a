// The Python module neuron_dist._C. Each part binds itself; importing starts no thread and opens nothing.
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  neuron::bind_device(m);
  neuron::bind_memory_history(m);
  neuron::bind_distributed(m);
  neuron::bind_simulation(m);
}
