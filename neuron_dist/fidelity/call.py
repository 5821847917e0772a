"""One call of ``torch.distributed`` on a neuron group, or of an operator, and what of it a rule can ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from neuron_dist.fidelity.placement import Placement

__all__ = ["FEATURES", "Call", "Feature", "Value", "plain_name"]

Value = str | int | bool


@dataclass(frozen=True)
class Call:
    """What one rank calls. The flags say what this rank sees of its own tensors."""

    op: str
    """One of :data:`neuron_dist.fidelity.vocabulary.OPS`."""
    group_ranks: tuple[int, ...]
    """Global ranks in group order."""
    world_size: int
    reduction: str = ""
    """Of reductions: ``SUM``, as ``ReduceOp`` spells it."""
    dtype: str = ""
    """As torch spells it: ``float32``. Empty without tensors."""
    numel: int = 0
    """Elements of this rank's tensor. No rule asks for it, so a verdict holds for all sizes."""
    even: bool = True
    """All parts of an all_to_all have the same size, going out and coming in."""
    explicit_splits: bool = False
    """An all_to_all_single was given split sizes that are not all 1."""
    cpu: bool = False
    """A tensor is on the CPU."""
    coalesced: bool = False
    """One of c10d's ``*_coalesced`` calls, which take several tensors."""
    managed: bool = False
    """Between ``_start_coalescing`` and ``_end_coalescing`` of the group: ``dist._coalescing_manager(device=...)``."""
    tensor_list: bool = False
    """The parts of the ranks are a list of tensors, not one tensor."""
    empty: bool = False
    """A tensor has no element."""
    empty_dim0: bool = False
    """A tensor's first dimension has size 0."""
    reshaped: bool = False
    """Input and output of a reduce_scatter_tensor differ in a dimension after the first, or the output's first is
    not the input's divided by the group's size."""
    operator: str = ""
    """Of the op ``operator``: its name without what differs between releases, see :func:`plain_name`."""
    float64: bool = False
    """An operator's tensor with a dimension is float64."""
    overflows: bool = False
    """An int64 result of an operator holds a value that int32 does not."""
    channels_last: bool = False
    """A tensor is made with ``memory_format=torch.channels_last`` or ``channels_last_3d``."""
    dynamic: bool = False
    """A graph of ``torch.compile`` has sizes that are not fixed."""


def plain_name(operator: str) -> str:
    """``aten::_linalg_svd.U`` -> ``svd``: an operator's name without namespace, overload and ATen's variants."""
    plain = operator.split("::", 1)[-1].split(".")[0].lstrip("_")
    if plain.startswith("scaled_dot_product_"):
        return "scaled_dot_product_attention"
    return plain.removeprefix("linalg_").removesuffix("_ex").removesuffix("_helper")


class Feature(NamedTuple):
    """What a condition can ask for."""

    kind: type
    of: Callable[[Call, Placement], Value]
    meaning: str


FEATURES: dict[str, Feature] = {
    "reduction": Feature(str, lambda c, p: c.reduction, "the ReduceOp"),
    "dtype": Feature(str, lambda c, p: c.dtype, "of the tensors"),
    "even": Feature(bool, lambda c, p: c.even, "all parts have the same size"),
    "explicit_splits": Feature(bool, lambda c, p: c.explicit_splits, "split sizes are given and not all 1"),
    "cpu": Feature(bool, lambda c, p: c.cpu, "a tensor is on the CPU"),
    "coalesced": Feature(bool, lambda c, p: c.coalesced, "one of c10d's *_coalesced calls"),
    "managed": Feature(bool, lambda c, p: c.managed, "under _coalescing_manager(device=...)"),
    "tensor_list": Feature(bool, lambda c, p: c.tensor_list, "a list of tensors, one a rank"),
    "empty": Feature(bool, lambda c, p: c.empty, "a tensor has no element"),
    "empty_dim0": Feature(bool, lambda c, p: c.empty_dim0, "a tensor's first dimension has size 0"),
    "reshaped": Feature(bool, lambda c, p: c.reshaped, "shapes of input and output do not correspond"),
    "operator": Feature(str, lambda c, p: c.operator, "the operator, as `svd` for aten::linalg_svd"),
    "float64": Feature(bool, lambda c, p: c.float64, "an operator's tensor with a dimension is float64"),
    "overflows": Feature(bool, lambda c, p: c.overflows, "an operator's int64 result does not fit in int32"),
    "channels_last": Feature(bool, lambda c, p: c.channels_last, "a tensor is made with a channels_last format"),
    "dynamic": Feature(bool, lambda c, p: c.dynamic, "a compiled graph has sizes that are not fixed"),
    "group_size": Feature(int, lambda c, p: p.size, "ranks of the group"),
    "subgroup": Feature(bool, lambda c, p: p.size < c.world_size, "fewer ranks than the default group"),
    "first_rank_remainder": Feature(int, lambda c, p: c.group_ranks[0] % p.size, "first global rank modulo group size"),
    "world_remainder": Feature(int, lambda c, p: c.world_size % p.size, "world size modulo group size"),
    "instances": Feature(int, lambda c, p: p.instances, "instances that the group is on"),
    "chips": Feature(int, lambda c, p: p.chips, "chips that the group is on"),
    "symmetric": Feature(bool, lambda c, p: p.symmetric, "the same cores on every instance"),
    "layout": Feature(str, lambda c, p: p.layout, "SxN: N cores of each instance, S apart; empty if they are not"),
    "stride": Feature(int, lambda c, p: p.stride, "S of the layout, 0 without one"),
    "cores": Feature(str, lambda c, p: p.cores, "A-B: the cores of each instance if they are adjacent, else empty"),
}  # fmt: skip
