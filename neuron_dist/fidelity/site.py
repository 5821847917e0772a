"""The line of the user's program that makes a call, seen from inside it."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType
from typing import NamedTuple

import torch

__all__ = ["NO_FRAME", "Site", "call_site", "in_object_collective"]

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(_HERE)) + os.sep,
)
"""torch and neuron_dist: what stands between a program and its collective."""
_C10D = os.path.join(_LIBRARIES[0], "distributed", "distributed_c10d.py")
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = (
    *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
    *(_STANDARD_LIBRARY + name + os.sep for name in ("site-packages", "dist-packages")),
)
"""Installed packages, such as TorchTitan: user's code here, though they may lie below the standard library."""
_WRITTEN_BY_TORCH = ("<eval_with_key>",)
"""File names of functions that FX and torch.compile write. A program typed in is ``<stdin>``, ``<string>``."""


class Site(NamedTuple):
    """A line of Python."""

    filename: str
    lineno: int
    function: str = ""
    module: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno}" + (f" ({self.function})" if self.function else "")


NO_FRAME = Site("<no Python frame>", 0)
"""For a call on a thread on which no Python runs but this package's."""


def call_site() -> Site:
    """The innermost frame of this thread outside torch, neuron_dist and the standard library.

    Autograd runs the backward of the device's operators on the thread that called ``backward``, so what a hook of it
    calls is at that line. On a thread that runs nothing but these libraries it is the outermost frame of torch or
    neuron_dist.
    """
    frame: FrameType | None = sys._getframe(1)
    library: FrameType | None = None
    while frame is not None:
        filename = frame.f_code.co_filename
        if not _is_passed_over(filename):
            return _site(frame)
        if filename.startswith(_LIBRARIES) and not filename.startswith(_HERE):
            library = frame
        frame = frame.f_back
    return NO_FRAME if library is None else _site(library)


def in_object_collective() -> bool:
    """Whether the call comes from one of torch's object collectives, as ``all_gather_object``.

    They carry bytes on the CPU because this backend takes CPU tensors too; on TorchNeuron, whose groups have the device
    alone, they put them there.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_passed_over(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if name.endswith(("_object", "_object_list")) and frame.f_code.co_filename == _C10D:
            return True
        frame = frame.f_back
    return False


def _site(frame: FrameType) -> Site:
    code = frame.f_code
    module = str(frame.f_globals.get("__name__", ""))
    return Site(code.co_filename, frame.f_lineno, code.co_qualname, module)


@cache
def _is_passed_over(filename: str) -> bool:
    if filename.startswith((*_LIBRARIES, *_WRITTEN_BY_TORCH, "<frozen ")):
        return True
    return filename.startswith(_STANDARD_LIBRARY) and not filename.startswith(_INSTALLED)
