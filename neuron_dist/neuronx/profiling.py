"""``torch_neuronx.profiling``: configuration of a capture, and the handler that writes it.

The device's spans come from torch.profiler itself, in simulated time (docs/device.md). What TorchNeuron writes as
.neff/.ntff and .pb files for its own viewer is one Chrome trace here, ``trace.json``, in the folder that
TorchNeuron would use.
"""

from __future__ import annotations

import enum
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig

__all__ = ["NeuronConfig", "NeuronProfiler", "ProfileMode"]

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy")


class ProfileMode(enum.Enum):
    """What a capture contains."""

    DEVICE = "device"
    """Spans of the device, in simulated time."""
    RUNTIME = "runtime"
    """The host's side: operators and what torch.profiler's own flags add."""
    CPU_UTIL = "cpu_util"
    """Accepted; nothing is written for it here."""
    HOST_MEMORY = "host_memory"
    """Accepted; nothing is written for it here: use torch.profiler's ``profile_memory=True``."""


class NeuronConfig(_ExperimentalConfig):
    """What to capture: ``torch.profiler.profile(experimental_config=...)`` takes it.

    ``max_events_per_nc`` keeps the first spans of each device; ``capture_enabled_for_nc`` (``"0,1,2-5"``) names the
    devices whose spans are kept. ``neff_cache_dir`` and ``precache_node_info`` are about compiled programs, of which
    there are none. Raises ValueError for a wrong value, TypeError for an unknown mode.
    """

    def __init__(
        self,
        modes: Sequence[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME),
        profile_output_dir: str | os.PathLike[str] = "./neuron_profile",
        max_events_per_nc: int | None = None,
        capture_enabled_for_nc: str | None = None,
        neff_cache_dir: str | None = None,
        precache_node_info: bool = True,
        **experimental: Any,
    ) -> None:
        super().__init__(**experimental)
        for mode in modes:
            if not isinstance(mode, ProfileMode):
                names = ", ".join(f"ProfileMode.{m.name}" for m in ProfileMode)
                raise TypeError(f"modes has {mode!r}, expected some of {names}")
        if max_events_per_nc is not None and max_events_per_nc < 1:
            raise ValueError(f"max_events_per_nc is {max_events_per_nc}, expected at least 1")
        self.modes = tuple(modes)
        self.profile_output_dir = Path(profile_output_dir)
        self.max_events_per_nc = max_events_per_nc
        self.capture_enabled_for_nc = capture_enabled_for_nc
        self.devices = _devices(capture_enabled_for_nc)
        self.neff_cache_dir = neff_cache_dir
        self.precache_node_info = precache_node_info
        unwritten = [
            m.name for m in self.modes if m in (ProfileMode.CPU_UTIL, ProfileMode.HOST_MEMORY)
        ]
        if unwritten:
            warnings.warn(
                f"NeuronConfig: nothing is written for {', '.join(unwritten)}; "
                "torch.profiler.profile(profile_memory=True) records the host's allocations",
                stacklevel=2,
            )


class NeuronProfiler:
    """Writes captures: ``on_trace_ready=NeuronProfiler(config).export_trace``.

    Early TorchNeuron's form works too: as a context manager, with ``pytorch_activities``, ``neuron_output_dir`` and
    ``event_filters`` (parts of names of spans that are kept), it profiles by itself and writes when it ends.
    """

    def __init__(
        self,
        config: NeuronConfig | None = None,
        *,
        pytorch_activities: Iterable[torch.profiler.ProfilerActivity] | None = None,
        neuron_output_dir: str | os.PathLike[str] | None = None,
        event_filters: Sequence[str] | None = None,
    ) -> None:
        if config is not None and not isinstance(config, NeuronConfig):
            raise TypeError(f"NeuronProfiler takes a NeuronConfig, not {type(config).__name__}")
        if config is None:
            config = NeuronConfig(profile_output_dir=neuron_output_dir or "./neuron_profile")
        elif neuron_output_dir is not None:
            raise ValueError("give neuron_output_dir or a NeuronConfig, not both")
        self.config = config
        self.event_filters = tuple(event_filters or ())
        self._activities = pytorch_activities
        self._profile: torch.profiler.profile | None = None
        self._written = 0

    @property
    def output_dir(self) -> Path:
        """``<profile_output_dir>/<instance>_pid_<pid>``, where ``instance`` is the simulated product's name."""
        from neuron_dist.device import _cluster

        instance = _cluster.current().product
        return self.config.profile_output_dir / f"{instance}_pid_{os.getpid()}"

    def export_trace(self, profile: torch.profiler.profile) -> None:
        """Writes ``trace.json`` (``trace_1.json``, ... for later cycles of a schedule) into :attr:`output_dir`."""
        self.output_dir.mkdir(parents=True, exist_ok=True)
        path = self.output_dir / (f"trace_{self._written}.json" if self._written else "trace.json")
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
        trace["traceEvents"] = list(self._kept(trace["traceEvents"]))
        path.write_text(json.dumps(trace))
        self._written += 1

    def __enter__(self) -> torch.profiler.profile:
        self._profile = torch.profiler.profile(
            activities=self._activities
            or (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1),
            experimental_config=self.config,
            on_trace_ready=self.export_trace,
        )
        return self._profile.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._profile is not None:
            torch.accelerator.synchronize()
            self._profile.__exit__(kind, value, trace)
            self._profile = None

    def _kept(self, events: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        counts: dict[Any, int] = {}
        for event in events:
            on_device = event.get("cat") in _DEVICE_CATEGORIES
            mode = ProfileMode.DEVICE if on_device else ProfileMode.RUNTIME
            if "cat" in event and mode not in self.config.modes:
                continue
            if on_device:
                device = event.get("args", {}).get("device")
                if self.config.devices is not None and device not in self.config.devices:
                    continue
                if self.event_filters and not any(f in event["name"] for f in self.event_filters):
                    continue
                counts[device] = counts.get(device, 0) + 1
                if counts[device] > (self.config.max_events_per_nc or counts[device]):
                    continue
            yield event


def _devices(text: str | None) -> frozenset[int] | None:
    """The devices that ``"0,1,2-5"`` names; None for all."""
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"capture_enabled_for_nc is {text!r}, expected indices like '0,1,2-5'")
        chosen.update(range(int(first), int(last or first) + 1))
    return frozenset(chosen)
