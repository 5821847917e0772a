"""The bytes that live on a device, counted storage by storage while operators run on fake tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes", "allocated_bytes"]


def allocated_bytes(nbytes: int) -> int:
    """What the device's allocator takes for a request: ``Heap::round_size`` of ``csrc/device/heap.cpp``."""
    if nbytes >= 16 << 20:
        return -(-nbytes // 4096) * 4096
    step = max(256, (1 << max(0, nbytes.bit_length() - 1)) // 8)
    return max(256, -(-nbytes // step) * step) if nbytes else 0


class LiveBytes(TorchDispatchMode):
    """Counts the storages of one device type that operators make, from their first use to their end.

    A storage that is resized, as FSDP2 does with parameters that it gathers, counts with its size at the time. Tensors
    that were there before the mode are counted when they are first used.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.live = 0
        """Bytes now."""
        self.peak = 0
        """The most bytes since :meth:`reset_peak`."""
        self._sizes: dict[int, int] = {}
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_
        self._paused = False

    def __enter__(self) -> LiveBytes:
        resize = self._resize

        def resize_(storage: torch.UntypedStorage, *args: Any) -> Any:
            result = resize(storage, *args)
            if id(storage) in self._sizes:
                self._count(id(storage), storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Storages that are made in this context never count."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def reset_peak(self) -> None:
        self.peak = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(t, DTensor | AsyncCollectiveTensor) for t in types):
            return NotImplemented  # it comes back as operators on what these hold
        result = func(*args, **(kwargs or {}))
        for leaf in () if self._paused else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self.device_type:
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._sizes:
            return
        self._sizes[key] = 0
        self._count(key, storage.nbytes())
        weakref.finalize(storage, self._forget, key)

    def _count(self, key: int, nbytes: int) -> None:
        rounded = allocated_bytes(nbytes)
        self.live += rounded - self._sizes[key]
        self._sizes[key] = rounded
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
