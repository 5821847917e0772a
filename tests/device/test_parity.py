"""Results on neuron equal the CPU's bit for bit: torch's own operator database, forward and backward."""

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 4
SKIPPED = {
    "as_strided": "partial_views: copying the view to the device packs its storage",
    "sparse.sampled_addmm": "sparse compressed tensors",
    "sparse.mm": "sparse compressed tensors",
    "tensor_split": "takes its indices on the CPU only, on every device",
    "linalg.lstsq": "the CPU's own results depend on what the workspace held",
    **{
        name: "uninitialised"
        for name in (
            "empty",
            "empty_like",
            "empty_strided",
            "empty_permuted",
            "new_empty",
            "new_empty_strided",
        )
    },
}
SKIPPED_VARIANTS = {("as_strided", "partial_views"), ("sparse.mm", "reduce")}


def cases() -> list[Any]:
    out = []
    for op in op_db:
        if op.name in SKIPPED and (
            op.name not in ("as_strided",) or (op.name, op.variant_test_name) in SKIPPED_VARIANTS
        ):
            continue
        dtypes = op.supported_dtypes("cpu")
        dtype = next(
            (d for d in (torch.float32, torch.complex64, torch.int64) if d in dtypes), None
        )
        if dtype is not None:
            out.append(pytest.param(op, dtype, id=op.formatted_name))
    return out


def to(tree: Any, device: str) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)
        return device if leaf == "cpu" else leaf

    return tree_map(move, tree)


def assert_same(a: Any, b: Any) -> None:
    if not isinstance(a, torch.Tensor):
        assert a == b or a != a
        return
    assert b.device.type == "neuron" or a.device.type != "cpu"
    assert (a.shape, a.dtype, a.layout) == (b.shape, b.dtype, b.layout)
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    elif a.numel():
        assert a.stride() == b.stride()
    torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_operator(op: Any, dtype: torch.dtype) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    for _, sample in zip(
        range(SAMPLES), op.sample_inputs("cpu", dtype, requires_grad=with_grad), strict=False
    ):
        results = []
        for device in ("cpu", "neuron"):
            args = to((sample.input, sample.args, sample.kwargs), device)
            torch.manual_seed(1)
            try:
                out = op(args[0], *args[1], **args[2])
                grads = gradients(out, args) if with_grad else []
            except Exception:
                if device == "cpu":
                    break  # not a case that the CPU can run
                raise
            results.append([*tree_leaves(out), *grads])
        if len(results) == 2:
            for a, b in zip(*results, strict=True):
                assert_same(a, b)


def gradients(out: Any, args: Any) -> list[torch.Tensor]:
    outs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    ins = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outs or not ins:
        return []
    grads = torch.autograd.grad(outs, ins, [torch.ones_like(t) for t in outs], allow_unused=True)
    return [g for g in grads if g is not None]
