"""Random numbers of ``torch.neuron``.

A device's state is 16 bytes, a uint64 seed and a uint64 offset, as ``torch.random.fork_rng`` and DTensor expect.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_dist import _C

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _generator(device: Any) -> torch.Generator:
    from neuron_dist.device import _index

    return _C._default_generator(_C._checked_index(_index(device)))


def get_rng_state(device: Any = "neuron") -> torch.Tensor:
    """The state of a device's generator as a ByteTensor on the CPU."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "neuron") -> None:
    """Sets the state of a device's generator, from a ByteTensor of 16 on any device."""
    # no copy of one on the CPU: the generator makes it, and under FakeTensorMode one made here would have no memory
    _generator(device).set_state(new_state.cpu())


def own_devices() -> list[int]:
    """Indices that this process may use: with a process group one, its local rank."""
    return [_C._current_device()] if _C._is_bound() else list(range(_C._device_count()))


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices that this process may use."""
    return [get_rng_state(i) for i in own_devices()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets what :func:`get_rng_state_all` returned."""
    for i, state in zip(own_devices(), new_states, strict=True):
        set_rng_state(state, i)


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator."""
    _C._seed_all(int(seed) & 0xFFFFFFFFFFFFFFFF)


def seed() -> None:
    """Seeds the current device's generator from the system's entropy."""
    _generator(None).seed()


def seed_all() -> None:
    """Seeds every device's generator alike, from the system's entropy."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()
