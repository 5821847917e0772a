"""What the native core calls: is this call one that TorchNeuron would carry out too?

The core keeps, for each group, the keys ``(op, reduction, dtype, flags)`` that were answered with True, and does not
ask for them again: a clean call costs one look into that set, and no Python. A call that violates a rule is asked each
time, since each place in the program that makes it is to be reported.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from functools import cache
from typing import TYPE_CHECKING

from neuron_dist.fidelity.environment import mode_from_environment, release_from_environment
from neuron_dist.fidelity.reporting import Claim, Reporter, process_reporter, store_claim
from neuron_dist.fidelity.site import in_object_collective

if TYPE_CHECKING:
    import torch.distributed as dist

    from neuron_dist.fidelity.profile import Profile
    from neuron_dist.fidelity.rule import Rule

__all__ = ["CallFlag", "FidelityHook", "default_store", "fidelity_hook"]


class CallFlag(IntFlag):
    """Bits of ``flags``; each is a field of :class:`neuron_dist.fidelity.call.Call`, which says when it is set.

    CPU and UNEVEN are bits 0 and 1 of a trace's ``flag2`` too; its bit 2 has no meaning here.
    """

    CPU = 1 << 0
    UNEVEN = 1 << 1
    COALESCED = 1 << 3
    MANAGED = 1 << 4
    EXPLICIT_SPLITS = 1 << 5
    TENSOR_LIST = 1 << 6
    EMPTY = 1 << 7
    EMPTY_DIM0 = 1 << 8
    RESHAPED = 1 << 9


_ALL_FLAGS = sum(CallFlag)


class FidelityHook:
    """Checks the calls of a process on its neuron groups. Thread-safe."""

    def __init__(
        self,
        profile: Callable[[], Profile],
        world_size: int,
        claim: Claim,
        reporter: Reporter = process_reporter,
    ) -> None:
        """``profile`` is called at the first check, since it reads files."""
        self._profile = cache(profile)
        self._world_size = world_size
        self._claim = claim
        self._reporter = reporter
        self._found: dict[tuple[str, str, str, int, tuple[int, ...]], list[tuple[Rule, str]]] = {}

    def __call__(
        self,
        op: str,
        reduction: str,
        dtype: str,
        numel: int,
        flags: int,
        group_ranks: tuple[int, ...],
    ) -> bool:
        """Whether the call is clean: the core need not ask again for this op, reduction, dtype, flags and group.

        To be called on the thread and below the Python frame that made the call, with the GIL, before anything of it
        has reached another rank. ``op`` is one of :data:`neuron_dist.fidelity.vocabulary.OPS`; ``reduction``
        (``"SUM"``) and ``dtype`` (``"float32"``) are empty where the op has none; ``numel`` is this rank's, and the
        answer does not depend on it; ``flags`` are :class:`CallFlag` bits; ``group_ranks`` the global ranks in group
        order.

        A call that is not clean is reported, or raises: :class:`FidelityError` in strict mode, on every rank that
        makes the call; :class:`FidelityWarning` where Python's filters say so.
        """
        objects = bool(flags & CallFlag.CPU) and in_object_collective()
        if objects:
            flags &= ~CallFlag.CPU
        key = (op, reduction, dtype, flags, group_ranks)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._judge(op, reduction, dtype, numel, flags, group_ranks)
        if not found:
            return not objects  # a call of the program itself with the same flags is another matter
        self._reporter.tell(found, self._profile().mode == "strict", self._claim)
        return False

    def _judge(
        self,
        op: str,
        reduction: str,
        dtype: str,
        numel: int,
        flags: int,
        group_ranks: tuple[int, ...],
    ) -> list[tuple[Rule, str]]:
        from neuron_dist.fidelity.call import Call

        if flags & ~_ALL_FLAGS:
            raise ValueError(f"flags is {flags:#x}, expected bits of {_ALL_FLAGS:#x} (CallFlag)")
        call = Call(
            op,
            group_ranks,
            self._world_size,
            reduction,
            dtype,
            numel,
            even=not flags & CallFlag.UNEVEN,
            explicit_splits=bool(flags & CallFlag.EXPLICIT_SPLITS),
            cpu=bool(flags & CallFlag.CPU),
            coalesced=bool(flags & CallFlag.COALESCED),
            managed=bool(flags & CallFlag.MANAGED),
            tensor_list=bool(flags & CallFlag.TENSOR_LIST),
            empty=bool(flags & CallFlag.EMPTY),
            empty_dim0=bool(flags & CallFlag.EMPTY_DIM0),
            reshaped=bool(flags & CallFlag.RESHAPED),
        )
        return self._profile().found(call)


def fidelity_hook(world_size: int, claim: Claim | None = None) -> FidelityHook | None:
    """The hook that the environment asks for, for groups of a job of ``world_size`` ranks; None where it says ``off``.

    Rank r stands on logical core r of the cluster of ``NEURON_DIST_CLUSTER``, of as many instances as the ranks fill.
    Reports are made by the rank that is first to count itself in the default group's store, unless ``claim`` decides.
    Raises ``ValueError`` for a wrong value of the variables; no file is read before the first check.
    """
    mode, release = mode_from_environment(), release_from_environment()
    if mode == "off":
        return None

    def profile() -> Profile:
        from neuron_dist.distributed.plans import cluster_of
        from neuron_dist.fidelity.profile import Profile

        return Profile(mode, release, cluster_of(world_size - 1))

    return FidelityHook(profile, world_size, claim or store_claim(default_store))


def default_store() -> dist.Store:
    """The default group's; raises ``ValueError`` before there is one."""
    import torch.distributed.distributed_c10d as c10d

    return c10d._get_default_store()
