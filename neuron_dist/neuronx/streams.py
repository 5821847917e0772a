"""``torch_neuronx.Stream`` and ``Event``: classes, where ``torch.neuron`` has functions of the same names.

They make ``torch.Stream`` and ``torch.Event`` objects, and every neuron stream and event is an instance.
"""

from __future__ import annotations

from typing import Any

import torch

from neuron_dist import device as module

__all__ = ["Event", "Stream"]


class _StreamType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Stream) and instance.device.type == "neuron"


class Stream(torch.Stream, metaclass=_StreamType):
    """A stream on ``device`` (the current one unless given). All priorities are alike."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> torch.Stream:  # type: ignore[misc]
        return module.Stream(device, priority, **kwargs)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        # An event has no device before it is recorded.
        return isinstance(instance, torch.Event) and (
            instance.device is None or instance.device.type == "neuron"
        )


class Event(torch.Event, metaclass=_EventType):
    """An event. ``elapsed_time`` gives simulated milliseconds, with ``enable_timing=True`` on both ends."""

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return module.Event(enable_timing, blocking, interprocess)
