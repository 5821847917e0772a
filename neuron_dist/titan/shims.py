"""All that TorchTitan 0.3.0 needs to run on a device it does not know, each with what makes it unnecessary.

Nothing of TorchTitan is changed on disk. ``before_import`` comes before the first import of a TorchTitan model,
``after_import`` before a Trainer is built. Each shim looks for the feature, not for a version number, so that it
vanishes with the torch or TorchTitan that has it.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import logging
import os
import resource
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from collectives.topology import Cluster
from neuron_dist.titan.peak_flops import peak_flops

__all__ = [
    "after_import",
    "before_import",
    "device_module",
    "exit_process",
    "spmd_backend",
    "torch_compiles_tensor_parallel",
    "torch_knows_spmd_types",
]


def before_import(device: str) -> None:
    """What has to stand before any model of TorchTitan is imported; a later call may name another device."""
    stub_triton_kernels()
    select_device(device)


def after_import(device: str, backend: str, cluster: Cluster) -> None:
    """What has to stand before a Trainer is built."""
    select_backend(device, backend)
    forget_torchrun_nccl_settings()
    provide_set_timeout()
    if device == "cpu":
        ignore_device_ids_of_barriers()
    accept_microbatch_lists()
    build_block_masks_eagerly()
    use_peak_flops(cluster)
    end_without_a_pause()
    if device != "cpu":
        watch_cycles_on(device)
        let_cpu_tensors_draw_on()
    if backend == "gloo":
        reduce_by_sum()


def stub_triton_kernels() -> None:
    """Lets the token dispatcher be imported without triton, by an empty module for the kernels it never calls here.

    Unnecessary once TorchTitan imports ``minimal_async_ep.kernels`` only where MinimalAsyncEP is chosen (0.3.0 does
    it always), or where triton is installed.
    """
    name = "torchtitan.distributed.minimal_async_ep.kernels"
    if name in sys.modules or importlib.util.find_spec("triton"):
        return

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        def kernel(*args: object, **kwargs: object) -> None:
            raise RuntimeError(f"MinimalAsyncEP's {attribute} needs triton on a CUDA device")

        return kernel

    stub = types.ModuleType(name, "Stands for kernels that need triton.")
    vars(stub)["__getattr__"] = missing
    sys.modules[name] = stub


def select_device(device: str) -> None:
    """Sets the device type that TorchTitan reads at import and copies into its modules.

    Unnecessary for ``neuron`` as long as torch finds no other accelerator, and for ``cpu`` once TorchTitan has a
    device setting (0.3.0 takes CUDA where there is no accelerator).
    """
    import torchtitan.tools.utils  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan.") and "device_type" in vars(module):
            module.device_type = device  # type: ignore[attr-defined]
        if name.startswith("torchtitan.") and "device_module" in vars(module):
            module.device_module = device_module(device)  # type: ignore[attr-defined]


def device_module(device: str) -> Any:
    """The module with the device's memory API: ``torch.<device>``, or a stand-in for the CPU."""
    return _CpuModule() if device == "cpu" else getattr(torch, device)


class _CpuModule(types.ModuleType):
    """``torch.cpu`` with the memory API that TorchTitan's metrics ask of a device; memory is the process's own.

    Unnecessary once TorchTitan's metrics do without these on a CPU (0.3.0 does not).
    """

    def __init__(self) -> None:
        super().__init__("torch.cpu", "The CPU as TorchTitan's metrics want to see a device.")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: object = None) -> str:
        return "cpu"

    def get_device_properties(self, device: object = None) -> Any:
        return types.SimpleNamespace(
            name="cpu", total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        )

    def memory_stats(self, device: object = None) -> dict[str, int]:
        peak = peak_resident_bytes()
        return {
            "active_bytes.all.peak": peak,
            "reserved_bytes.all.peak": peak,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def reset_peak_memory_stats(self, device: object = None) -> None:
        with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    def empty_cache(self) -> None:
        pass


def peak_resident_bytes() -> int:
    """The most memory this process has held since its peak was last reset."""
    with suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def select_backend(device: str, backend: str) -> None:
    """Sets the backend that TorchTitan takes for the device type.

    Unnecessary once TorchTitan has a setting for it (0.3.0 reads torch's map of default backends).
    """
    dist.Backend.default_device_backend_map[device] = backend


def forget_torchrun_nccl_settings() -> None:
    """Removes NCCL's setting that torchrun exports, of which TorchTitan would warn that it overrides it.

    Unnecessary once TorchTitan sets NCCL's variables for NCCL only.
    """
    os.environ.pop("TORCH_NCCL_ASYNC_ERROR_HANDLING", None)


def provide_set_timeout() -> None:
    """Gives ``torch.distributed.set_timeout``. Unnecessary from torch 2.14."""
    if hasattr(dist, "set_timeout"):
        return

    def set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        group = dist.group.WORLD if group is None else group
        assert group is not None
        for device in group._device_types:
            backend: Any = group._get_backend(device)
            if backend.name() != "fake":  # a group of one rank, which waits for nobody
                backend.set_timeout(timeout)

    dist.set_timeout = set_timeout  # type: ignore[attr-defined]


def ignore_device_ids_of_barriers() -> None:
    """Lets TorchTitan's barrier be one of CPU ranks, though torch has an accelerator.

    Unnecessary once TorchTitan names device ids for accelerators only (0.3.0 always does, and torch then asks the
    group for a backend of the accelerator).
    """
    barrier = dist.barrier
    if hasattr(barrier, "_ignores_device_ids"):
        return

    @wraps(barrier)
    def barrier_of_ranks(*args: Any, device_ids: object = None, **kwargs: Any) -> Any:
        return barrier(*args, **kwargs)

    barrier_of_ranks._ignores_device_ids = True  # type: ignore[attr-defined]
    dist.barrier = barrier_of_ranks


def torch_knows_spmd_types() -> bool:
    """Whether FSDP2 takes parameters of TorchTitan's default ``spmd_types`` (torch 2.14 and up)."""
    from torch.distributed.fsdp import _fully_shard

    return any(
        "spmd_types" in file.read_text() for file in Path(*_fully_shard.__path__).glob("*.py")
    )


def torch_compiles_tensor_parallel() -> bool:
    """Whether what AOTAutograd saves of a tensor-parallel model for backward passes its own assertion (torch 2.14 and
    up; 2.13 says "expected all tensors_saved_with_vc_check to be Tensors")."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)


def spmd_backend() -> str:
    """The value of ``parallelism.spmd_backend`` to use unless a recipe sets it.

    Unnecessary from torch 2.14, where TorchTitan's default works.
    """
    return "spmd_types" if torch_knows_spmd_types() else "partial_dtensor"


def accept_microbatch_lists() -> None:
    """Lets pipeline schedules' ``step`` take microbatches as lists. Unnecessary from torch 2.14."""
    from torch.distributed.pipelining import schedules

    classes: tuple[Any, ...] = (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti)
    for cls in classes:
        if "arg_mbs" not in inspect.signature(cls.step).parameters and not hasattr(
            cls.step, "__wrapped__"
        ):
            cls.step = _with_microbatch_lists(cls.step)


def _with_microbatch_lists(step: Any) -> Any:
    @wraps(step)
    def step_lists(
        self: Any,
        *args: Any,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        loss_kwargs: dict[str, Any] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        common = {"losses": losses, "return_outputs": return_outputs, "loss_kwargs": loss_kwargs}
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            return step(self, *args, **common, **kwargs)
        stages = self._stages if hasattr(self, "_stages") else [self._stage]
        for stage in stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, **common)
        last = next((stage for stage in stages if stage.is_last), None)
        return (
            self._merge_outputs(last.output_chunks) if last is not None and return_outputs else None
        )

    return step_lists


def build_block_masks_eagerly() -> None:
    """Builds block masks without torch.compile, which costs a minute on a CPU for a mask that we then make dense.

    Unnecessary once TorchTitan compiles ``create_block_mask`` on CUDA only, or torch's compiler is quick there.
    """
    from torch.distributed.tensor.experimental._context_parallel import (
        _attention as context_parallel,
    )
    from torch.nn.attention.flex_attention import create_block_mask
    from torchtitan.models.common import attention

    attention._compiled_create_block_mask = create_block_mask
    context_parallel._compiled_create_block_mask = create_block_mask  # type: ignore[assignment]


def reduce_by_sum() -> None:
    """Makes FSDP2 divide gradients apart from reducing them, for backends without PREMUL_SUM (Gloo).

    Unnecessary once Gloo has it, or FSDP2 looks at the backend before it asks for it (torch 2.13 to 2.15 do not).
    """
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.distributed import fsdp

    divide = fsdp.disable_fsdp_gradient_division
    if hasattr(divide, "__wrapped__"):
        return

    @wraps(divide)
    def disable_and_sum(model: torch.nn.Module) -> None:
        divide(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    fsdp.disable_fsdp_gradient_division = disable_and_sum
    for name, module in list(sys.modules.items()):
        if (
            name.startswith("torchtitan.")
            and vars(module).get("disable_fsdp_gradient_division") is divide
        ):
            module.disable_fsdp_gradient_division = disable_and_sum  # type: ignore[attr-defined]


def use_peak_flops(cluster: Cluster) -> None:
    """Gives MFU the peak of the cluster's logical core. Unnecessary once TorchTitan takes the peak from the device.

    TorchTitan 0.3.0 runs lspci to find it, warns where there is none, and takes an A100 for what it does not know.
    """
    from torchtitan.tools import utils

    flops = peak_flops(cluster)
    utils.get_peak_flops = lambda device_name: flops


def watch_cycles_on(device: str) -> None:
    """Lets ``training.gc_debug`` watch reference cycles that hold tensors of ``device``.

    Unnecessary once ``torch.utils.viz._cycles`` asks torch.accelerator (2.13 to 2.15 ask torch.cuda).
    """
    from torch._subclasses import FakeTensor
    from torch.utils.viz import _cycles

    class Torch(types.ModuleType):
        cuda = getattr(torch, device)

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    def is_device_tensor(value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.device.type == device
            and not isinstance(value, FakeTensor)
        )

    _cycles.torch = Torch("torch", "torch, with the device where CUDA is.")  # type: ignore[assignment]
    _cycles.is_cuda_tensor = is_device_tensor


def let_cpu_tensors_draw_on() -> None:
    """Lets random operators on DTensors that lie in CPU memory (CPU offload) go on in the CPU's random numbers.

    DTensor runs them between saving and restoring the CPU's generator, so each draws the same numbers as the last,
    and ``trunc_normal_``, which draws again what lies outside, never ends. Unnecessary once DTensor's tracker leaves
    tensors that are not on its device alone (torch 2.13 does not).
    """
    from torch.distributed.tensor._random import OffsetBasedRNGTracker

    region = OffsetBasedRNGTracker._distribute_region
    if hasattr(region, "_draws_on"):
        return

    @contextmanager
    def region_that_draws_on(*args: Any, **kwargs: Any) -> Iterator[None]:
        with region(*args, **kwargs):
            yield
            drawn = torch.get_rng_state()
        torch.set_rng_state(drawn)

    region_that_draws_on._draws_on = True  # type: ignore[attr-defined]
    OffsetBasedRNGTracker._distribute_region = region_that_draws_on  # type: ignore[method-assign, assignment]


def end_without_a_pause() -> None:
    """Takes out the 2 seconds for which rank 0 sleeps at the end of training.

    They give NCCL's other ranks time to complete; here rank 0 waits for them, when it collects what they have
    recorded. Unnecessary once TorchTitan ends with a barrier (0.3.0 sleeps).
    """
    from torchtitan import trainer

    if trainer.time is time:
        awake = types.ModuleType("time", "The time, without its sleep.")
        vars(awake).update(vars(time), sleep=lambda seconds: None)
        trainer.time = awake


def exit_process(status: int) -> NoReturn:
    """Ends the process, without taking the interpreter down under a Gloo thread that may still want it.

    Meshes outlive their trainer in DTensor's caches, and with them Gloo groups and their threads, also after
    ``destroy_process_group``. About one in a hundred runs then ended with SIGABRT after its last line, as happens
    when such a thread asks for an interpreter that is going down. Unnecessary once torch empties those caches with
    the group (2.13 does not), or where a late thread waits instead of being ended (Python 3.14).
    """
    if _has_thread("pt_gloo_runloop"):
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _has_thread(name: str) -> bool:
    for task in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it may have ended just now
            if task.read_text().strip() == name:
                return True
    return False
