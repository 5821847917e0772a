"""Processes of this machine that hold memory of a simulated device, found by their open descriptors."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import metadata

__all__ = ["DeviceProcess", "device_processes"]

ARENA = re.compile(r"/memfd:neuron:(\d+)")
"""A rank's memory is a memfd of this name, with its device."""


@dataclass(frozen=True)
class DeviceProcess:
    """A process and the logical cores whose memory it holds: one for a rank."""

    pid: int
    cores: tuple[int, ...]
    command: str
    version: str


def device_processes() -> list[DeviceProcess]:
    """Those that this user may look at, by number."""
    try:
        version = metadata.version("neuron-dist")
    except metadata.PackageNotFoundError:
        version = "NA"
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            cores = {int(m[1]) for link in links if (m := ARENA.match(link))}
            if cores:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(DeviceProcess(pid, tuple(sorted(cores)), command, version))
        except OSError:  # it has ended, or is another user's
            continue
    return found
