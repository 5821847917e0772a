"""What dynamo asks of a device: streams, events, the current device."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from neuron_dist import device as neuron

__all__ = ["NeuronInterface", "register"]


class NeuronInterface(DeviceInterface):
    """``torch.neuron`` in dynamo's words."""

    device = neuron.device
    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """For workers of a compiler; neuron has none, so they see what the process sees."""

        set_device = staticmethod(neuron.set_device)
        current_device = staticmethod(neuron.current_device)
        get_device_properties = staticmethod(neuron.get_device_properties)

    current_device = staticmethod(neuron.current_device)
    set_device = staticmethod(neuron.set_device)
    device_count = staticmethod(neuron.device_count)
    is_available = staticmethod(neuron.is_available)
    stream = staticmethod(neuron.stream)
    current_stream = staticmethod(neuron.current_stream)
    set_stream = staticmethod(neuron.set_stream)
    synchronize = staticmethod(neuron.synchronize)
    is_bf16_supported = staticmethod(neuron.is_bf16_supported)
    memory_allocated = staticmethod(neuron.memory_allocated)
    get_compute_capability = staticmethod(neuron.get_device_capability)

    @staticmethod
    def exchange_device(index: int) -> int:
        """Makes ``index`` the current device; returns which it was."""
        before = neuron.current_device()
        neuron.set_device(index)
        return before

    @staticmethod
    def maybe_exchange_device(index: int) -> int:
        """As :meth:`exchange_device`; a negative index changes nothing."""
        return NeuronInterface.exchange_device(index) if index >= 0 else neuron.current_device()

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        neuron.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        """The number of the current stream: there is no handle of a runtime behind it."""
        stream: Any = neuron.current_stream(device_idx)
        return int(stream.stream_id)


def register() -> None:
    """Tells dynamo of the device."""
    register_interface_for_device("neuron", NeuronInterface)
