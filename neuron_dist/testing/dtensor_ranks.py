"""What each rank of ``dtensor_checks`` does. Importing this imports torch's database, so that ranks are forked with it."""

from __future__ import annotations

import warnings
from functools import cache
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorConverter
from torch.utils._pytree import tree_leaves, tree_map_only

from neuron_dist.testing.op_checks import Check, all_ops, compare, samples
from neuron_dist.testing.op_mirror import Mirror

__all__ = ["checks_of"]

COMBINATIONS = 24
"""Placements of one sample's tensors that are tried at most; most samples have fewer."""


@cache
def _ops() -> dict[str, Any]:
    return {op.formatted_name: op for op in all_ops()}


def checks_of(
    name: str, dtype: str, variants: frozenset[str], most: int | None, device: str
) -> list[Check]:
    from torch.distributed.device_mesh import init_device_mesh

    op = _ops()[name]
    meshes = {where: init_device_mesh(where, (dist.get_world_size(),)) for where in ("cpu", device)}
    done: list[Check] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(op, getattr(torch, dtype), most):
            args = (sample.input, sample.args, dict(sample.kwargs))
            for i in range(_count(meshes["cpu"], args)):
                done += _one(op, args, i, meshes, variants, device)
    return done


def _converter(mesh: Any, args: Any) -> Any:
    return DTensorConverter(mesh, (args[0], *args[1]), args[2])


def _count(mesh: Any, args: Any) -> int:
    return min(COMBINATIONS, sum(1 for _ in _converter(mesh, args).sharding_combs))


def _local(tree: Any) -> Any:
    """Shards and where they belong, instead of DTensors."""
    from torch.distributed.tensor import DTensor

    return [
        [leaf.to_local(), str(leaf.placements), tuple(leaf.shape)]
        if isinstance(leaf, DTensor)
        else leaf
        for leaf in tree_leaves(tree)
    ]


def _one(
    op: Any,
    args: Any,
    combination: int,
    meshes: dict[str, Any],
    variants: frozenset[str],
    device: str,
) -> list[Check]:
    def sharded(where: str) -> tuple[Any, Any, Any]:
        whole = Mirror(where)(args)
        converter = _converter(meshes[where], whole)
        given, named = next(islice(converter, combination, None))
        if not converter.successful():
            raise NotImplementedError("a tensor that cannot be sharded")
        leaves = [
            t
            for t in tree_leaves((given, named))
            if isinstance(t, Tensor) and t.is_floating_point()
        ]
        leaves = [t.detach().requires_grad_() for t in leaves]
        found = iter(leaves)
        given, named = tree_map_only(
            Tensor, lambda t: next(found) if t.is_floating_point() else t, (given, named)
        )
        torch.manual_seed(5)
        return op(*given, **named), leaves, whole

    def shards(where: str, seed: int) -> tuple[Any, Any]:
        out, leaves, _ = sharded(where)
        roots = [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]
        grads: Any = []
        if roots and leaves:
            grads = torch.autograd.grad([t.sum() for t in roots], leaves, allow_unused=True)
        return _local([out, *(g for g in grads if g is not None)]), ()

    def whole(where: str, seed: int) -> tuple[Any, Any]:
        out, _, given = sharded(where)
        torch.manual_seed(5)
        expected = op(given[0], *given[1], **given[2])
        together = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tree_leaves(out)]
        torch.testing.assert_close(together, tree_leaves(expected), equal_nan=True)
        return None, ()

    runs = {"shards": shards, "whole": whole}
    done = []
    for variant in [v for v in runs if v in variants]:
        dist.barrier()
        done.append(compare(variant, runs[variant], device))
    return done


_ops()  # here, once, rather than in every rank
