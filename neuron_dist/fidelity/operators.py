"""Operators and compiled graphs. The native core calls once for each operator and each thing that it saw of it."""

from __future__ import annotations

import sys
from enum import IntFlag
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING

from torch import _tensor_str

from neuron_dist import _C
from neuron_dist.fidelity.call import Call, plain_name
from neuron_dist.fidelity.environment import mode_from_environment, release_from_environment
from neuron_dist.fidelity.hook import default_store
from neuron_dist.fidelity.reporting import Claim, Reporter, process_reporter, store_claim
from neuron_dist.fidelity.vocabulary import COMPILE, OPERATOR

if TYPE_CHECKING:
    from neuron_dist.fidelity.profile import Profile

__all__ = ["OperatorHook", "Seen", "tell", "tell_of_graph"]


class Seen(IntFlag):
    """Bits of ``seen``, as ``csrc/device/watch.h`` has them."""

    OPERATOR = 1 << 0
    FLOAT64 = 1 << 1
    OVERFLOW = 1 << 2
    CHANNELS_LAST = 1 << 3


class OperatorHook:
    """Reports operators of this process. Thread-safe."""

    def __init__(
        self, profile: Profile, claim: Claim, reporter: Reporter = process_reporter
    ) -> None:
        self._profile = profile
        self._claim = claim
        self._reporter = reporter

    def __call__(self, operator: str, dtype: str, seen: int) -> None:
        """Warns of what TorchNeuron does otherwise, at the line that calls ``operator`` (``aten::mm``).

        Raises :class:`FidelityError` in strict mode for what it refuses.
        """
        flags = Seen(seen)
        self.judge(
            Call(
                OPERATOR,
                group_ranks=(0,),
                world_size=1,
                dtype=dtype,
                operator=plain_name(operator),
                float64=Seen.FLOAT64 in flags,
                overflows=Seen.OVERFLOW in flags,
                channels_last=Seen.CHANNELS_LAST in flags,
            )
        )

    def judge(self, call: Call) -> None:
        """Warns of every rule that ``call`` violates; raises :class:`FidelityError` in strict mode if one refuses it."""
        strict = self._profile.mode == "strict"
        self._reporter.tell(self._profile.found(call), strict, self._claim)


@cache
def _hook() -> OperatorHook | None:
    mode, release = mode_from_environment(), release_from_environment()
    if mode == "off":
        return None
    from neuron_dist.distributed.plans import cluster_of
    from neuron_dist.fidelity.profile import Profile

    return OperatorHook(Profile(mode, release, cluster_of(0)), store_claim(default_store))


def tell(operator: str, dtype: str, seen: int) -> bool:
    """What ``_C._watch_operators`` is given: false for what torch computes to print a tensor, which no program means.
    The environment, and the rules' files, are read at the first call."""
    hook = _hook()
    if hook is None:
        _C._watch_operators(None)
        return False
    if _prints(sys._getframe()):
        return False
    hook(operator, dtype, seen)
    return True


def _prints(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _tensor_str.__file__:
            return True
        frame = frame.f_back
    return False


def tell_of_graph(dynamic: bool) -> None:
    """Called for each graph that ``torch.compile`` makes for the device: ``dynamic`` if a size in it is not fixed."""
    hook = _hook()
    if hook is not None:
        hook.judge(Call(COMPILE, group_ranks=(0,), world_size=1, dynamic=dynamic))
