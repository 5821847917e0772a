"""The roofline of one logical core: what an operator costs, by its flops and the bytes it moves.

    duration = launch_ns + max(flops / tensor peak of the dtype, bytes / HBM bandwidth)

rounded to the nearest nanosecond. Every constant comes from the product's YAML (``compute`` and ``assumptions``).
The native clock (``csrc/simulation/roofline.h``) does the same double-precision operations in the same order, so that
a replay of a trace gives the run's own nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from collectives.topology import Cluster

__all__ = ["COMPUTE", "FROM_DEVICE", "TO_DEVICE", "Roofline", "tensor_kind"]

COMPUTE, TO_DEVICE, FROM_DEVICE = range(3)
"""Where an operator's bytes move: in HBM, from the host to the device, from the device to the host."""

_KINDS = ("bfloat16", "float16", "float32", "float8")


def tensor_kind(dtype: str) -> str:
    """The column of ``compute.tensor_flops`` for a torch dtype's name.

    TensorE has no 64-bit and no integer formats: those, and complex numbers, are charged at float32's rate.
    """
    if dtype.startswith("float8") or dtype.startswith("float4"):
        return "float8"
    return dtype if dtype in _KINDS else "float32"


@dataclass(frozen=True)
class Roofline:
    """Rates of one logical core, in flops or bytes per second, and fixed times in nanoseconds."""

    tensor_flops: dict[str, float]
    """Dense peak by ``bfloat16``, ``float16``, ``float32``, ``float8``, times ``tensor_efficiency``."""
    peak_flops: float
    """This core's share of its chip's published bf16 peak: what MFU is a share of."""
    hbm_Bps: float
    """This core's share of its chip's HBM bandwidth, times ``hbm_efficiency``."""
    host_Bps: float
    launch_ns: float
    """Device time before each operator."""
    dispatch_ns: float
    """Host time to issue an operator or a collective."""

    @classmethod
    def of(cls, cluster: Cluster) -> Roofline:
        """The roofline of one logical core of ``cluster``."""
        compute, assumed = cluster.spec["compute"], cluster.parameters
        share = 1.0 / cluster.logical_cores_per_chip
        return cls(
            tensor_flops={
                kind: flops * cluster.lnc * assumed["tensor_efficiency"]
                for kind, flops in compute["tensor_flops"].items()
            },
            peak_flops=compute["chip_flops"] * share,
            hbm_Bps=compute["hbm_Bps"] * share * assumed["hbm_efficiency"],
            host_Bps=float(assumed["host_Bps"]),
            launch_ns=float(assumed["launch_ns"]),
            dispatch_ns=float(assumed["dispatch_ns"]),
        )

    def rates(self) -> dict[str, float]:
        """As the native clock takes them."""
        return {
            **self.tensor_flops,
            "hbm_Bps": self.hbm_Bps,
            "host_Bps": self.host_Bps,
            "launch_ns": self.launch_ns,
            "dispatch_ns": self.dispatch_ns,
        }

    def faster(self, factor: float) -> Roofline:
        """The same core with ``factor`` times the compute and HBM rates."""
        return replace(
            self,
            tensor_flops={k: v * factor for k, v in self.tensor_flops.items()},
            peak_flops=self.peak_flops * factor,
            hbm_Bps=self.hbm_Bps * factor,
        )

    def duration_ns(
        self, flops: int, nbytes: int, dtype: str = "float32", moves: int = COMPUTE
    ) -> int:
        """Nanoseconds of one operator of ``flops`` floating point operations on TensorE that moves ``nbytes``."""
        flops_per_s = self.tensor_flops[tensor_kind(dtype)]
        bytes_per_s = self.hbm_Bps if moves == COMPUTE else self.host_Bps
        busy = max(flops * 1e9 / flops_per_s, nbytes * 1e9 / bytes_per_s)
        return int(np.floor(self.launch_ns + busy + 0.5))

    def durations_ns(
        self, flops: np.ndarray, nbytes: np.ndarray, flops_per_s: np.ndarray, moves: np.ndarray
    ) -> np.ndarray:
        """The same for arrays of operators, as int64; ``flops_per_s`` is each one's tensor peak."""
        bytes_per_s = np.where(moves == COMPUTE, self.hbm_Bps, self.host_Bps)
        busy = np.maximum(
            flops.astype(np.float64) * 1e9 / flops_per_s,
            nbytes.astype(np.float64) * 1e9 / bytes_per_s,
        )
        return np.floor(self.launch_ns + busy + 0.5).astype(np.int64)
