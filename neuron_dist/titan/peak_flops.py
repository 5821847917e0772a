"""Peak dense bf16 FLOPS of one logical core, against which TorchTitan computes MFU of the wall clock."""

from __future__ import annotations

from collectives.topology import Cluster

__all__ = ["peak_flops"]


def peak_flops(cluster: Cluster) -> float:
    """TensorE's rate of one logical core of ``cluster``, as TorchTitan itself has it for Trainium: ``tensor_flops`` of
    the product's YAML, which names its source."""
    return float(cluster.spec["compute"]["tensor_flops"]["bfloat16"]) * cluster.lnc
