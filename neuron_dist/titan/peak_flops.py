"""Peak dense bf16 FLOPS of one logical core, against which TorchTitan computes MFU.

The figures are those of the TensorEngine of one physical core in AWS's Neuron SDK documentation,
about-neuron/arch/neuron-hardware/neuron-core-v2.rst ("over 90" TFLOPS), neuron-core-v3.rst and neuron-core-v4.rst
(79 TFLOPS each). A logical core fuses ``lnc`` physical ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectives.topology import Cluster

__all__ = ["BF16_FLOPS_PER_PHYSICAL_CORE", "peak_flops"]

BF16_FLOPS_PER_PHYSICAL_CORE: Mapping[str, float] = {"trn1": 90e12, "trn2": 79e12, "trn3": 79e12}


def peak_flops(cluster: Cluster) -> float:
    """Peak dense bf16 FLOPS of one logical core of ``cluster``."""
    generation = next(g for g in BF16_FLOPS_PER_PHYSICAL_CORE if cluster.family.startswith(g))
    return BF16_FLOPS_PER_PHYSICAL_CORE[generation] * cluster.lnc
