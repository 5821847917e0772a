"""What a TorchTitan config needs in order to run on CPUs with this torch, and what in it cannot run here."""

from __future__ import annotations

import dataclasses
from typing import Any

from neuron_dist.titan import shims

__all__ = ["adapted", "unsupported"]

_CUDA_DISPATCHERS = ("DeepEP", "HybridEP", "MinimalAsyncEP")
"""TorchTitan's ways to move tokens to their experts that are libraries of CUDA kernels."""


def adapted(config: Any) -> Any:
    """The config (a ``Trainer.Config``) with what this machine needs, all of which a user may set otherwise."""
    from neuron_dist.titan.attention import OVERRIDES

    imports = [*config.override.imports]
    for attention, replacement in OVERRIDES.items():
        if replacement not in imports and _has(config, attention):
            imports.append(replacement)
    return dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, disable_cuda_graphs=True),
        parallelism=dataclasses.replace(config.parallelism, spmd_backend=shims.spmd_backend()),
        debug=dataclasses.replace(
            config.debug,
            spmd_typechecking=config.debug.spmd_typechecking and shims.torch_knows_spmd_types(),
        ),
        override=dataclasses.replace(config.override, imports=imports),
    )


def _has(config: Any, module: type) -> bool:
    """Whether the model has a module of the config class ``module``."""
    spec = config.model_spec
    return spec is not None and any(True for _ in spec.traverse(module))


def unsupported(config: Any) -> list[tuple[str, object, str]]:
    """What TorchTitan accepts but cannot run here: key, value, and what is expected instead."""
    from torchtitan.models.common import token_dispatcher
    from torchtitan.models.common.attention import VarlenAttention
    from torchtitan.models.common.dist_gemm import RowParallelLinear

    findings: list[tuple[str, object, str]] = []
    parallelism, spec = config.parallelism, config.model_spec
    backend = parallelism.spmd_backend
    if backend == "spmd_types" and not shims.torch_knows_spmd_types():
        expected = f"needs torch 2.14 or newer; expected {shims.spmd_backend()}"
        findings.append(("parallelism.spmd_backend", backend, expected))
    elif backend != "spmd_types" and _has(config, RowParallelLinear.Config):
        expected = (
            "folds collectives into matrix products (dist_gemm), for which parallelism.spmd_backend has to be "
            "spmd_types, which needs torch 2.14 or newer; choose a config without"
        )
        findings.append(("config", f"{spec.name} {spec.flavor}", expected))
    context = parallelism.context_parallel_degree
    if context > 1 and _has(config, VarlenAttention.Config):
        expected = "cannot split variable-length attention; expected 1, or a config with flex attention"
        findings.append(("parallelism.context_parallel_degree", context, expected))
    for dispatcher in _CUDA_DISPATCHERS:
        if _has(config, getattr(token_dispatcher, f"{dispatcher}TokenDispatcher").Config):
            expected = (
                f"moves tokens by {dispatcher}, which needs CUDA; expected a config with all-to-all"
            )
            findings.append(("config", f"{spec.name} {spec.flavor}", expected))
    tensor = parallelism.tensor_parallel_degree
    compiled = config.compile.enable and "model" in config.compile.components
    if compiled and tensor > 1 and not shims.torch_compiles_tensor_parallel():
        expected = (
            f"compiles the model, which beside tensor_parallel_degree {tensor} needs torch 2.14 or newer; "
            "expected false, or compile.components: [loss]"
        )
        findings.append(("compile.enable", True, expected))
    return findings
