"""Streams and events of ``torch.neuron``, on top of ``torch.Stream`` and ``torch.Event``."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from neuron_dist import _C

__all__ = [
    "Event",
    "Stream",
    "current_stream",
    "default_stream",
    "query",
    "record_event",
    "set_stream",
    "stream",
    "synchronize",
    "wait_event",
    "wait_stream",
]


def _device(device: Any = None) -> torch.device:
    from neuron_dist.device import _index

    return torch.device("neuron", _C._checked_index(_index(device)))


def Stream(device: Any = None, priority: int = 0, **kwargs: Any) -> torch.Stream:
    """A new stream on ``device`` (the current one unless given). All priorities are alike."""
    if kwargs:  # stream_id, device_index, device_type: an existing stream
        return torch.Stream(**kwargs)
    return torch.Stream(device=_device(device), priority=priority)


def Event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> torch.Event:
    """A new event. ``elapsed_time`` needs ``enable_timing=True`` on both ends."""
    if interprocess:
        raise NotImplementedError(
            "torch.neuron.Event(interprocess=True): events cannot be shared between processes; "
            "order ranks with a collective such as torch.distributed.barrier()"
        )
    return torch.Event(device="neuron", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: Any = None) -> torch.Stream:
    """This thread's current stream on ``device``."""
    return torch.accelerator.current_stream(_device(device))


def default_stream(device: Any = None) -> torch.Stream:
    """The stream on which work runs unless another is chosen."""
    at = _device(device)
    return torch.Stream(stream_id=0, device_index=at.index, device_type=_device_type())


def _device_type() -> int:
    kind: Any = torch._C._autograd.DeviceType.PrivateUse1
    return int(kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` this thread's current one on its device."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


class stream:
    """Context in which ``stream`` is the current one, and its device the current device."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self.stream.__enter__()
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, value, trace)


def synchronize(device: Any = None) -> None:
    """Waits until all work on ``device`` is done."""
    torch.accelerator.synchronize(_device(device))


def wait_stream(stream: torch.Stream) -> None:
    """The current stream waits for the work on ``stream``."""
    current_stream().wait_stream(stream)


def wait_event(event: torch.Event) -> None:
    """The current stream waits for ``event``."""
    current_stream().wait_event(event)


def record_event(event: torch.Event | None = None) -> torch.Event:
    """Records ``event`` (a new one unless given) on the current stream."""
    return current_stream().record_event(event)


def query() -> bool:
    """Whether all work on the current stream is done."""
    return current_stream().query()
