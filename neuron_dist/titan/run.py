"""``python -m neuron_dist.train``: one rank of a run, as torchrun starts it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch

from collectives.topology import ClusterError, load_cluster
from neuron_dist.simulation import session
from neuron_dist.titan import recipe as recipes
from neuron_dist.titan.arguments import add_recipe_options
from neuron_dist.titan.check import Plan, check
from neuron_dist.titan.problems import EXIT_RECIPE, Problem, RecipeError
from neuron_dist.titan.recipe import ClusterSection
from neuron_dist.titan.summary import Recorder, summary

__all__ = ["main", "offline", "parse_args", "prepare", "train", "world"]

_MAX_DEVICES = 127
"""As many as torch numbers in a process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Checks the recipe on every rank, then trains; returns the exit status."""
    ranks, local_ranks = world()
    _threads(local_ranks)
    try:
        options = parse_args(sys.argv[1:] if argv is None else argv)
        plan = prepare(
            options.recipe, options.set, ranks, local_ranks, options.device, options.backend
        )
    except RecipeError as error:
        _refuse(str(error))
    train(plan)
    return 0


def world() -> tuple[int, int]:
    """Ranks of the run, and those of them on this machine, by torchrun's environment."""
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def prepare(
    recipe: str, settings: Sequence[str], ranks: int, local_ranks: int, device: str, backend: str
) -> Plan:
    """The plan for ``ranks`` ranks, ``local_ranks`` of them on this machine, in the environment that it needs.

    Raises :class:`RecipeError` with everything that is wrong. A process that forks ranks may call it before.
    """
    offline()
    _need_device(device)
    _simulate(recipes.load(recipe, settings).own.cluster, local_ranks)
    return check(recipe, settings, ranks=ranks, device=device, backend=backend)


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; what is wrong with it is a :class:`RecipeError` like the rest."""
    parser = _Parser(
        prog="torchrun --nproc-per-node N -m neuron_dist.train",
        description="Trains a TorchTitan recipe on the simulated neuron device.",
        allow_abbrev=False,
        add_help=_rank() == 0,
    )
    parser.add_argument(
        "--recipe",
        required=True,
        help="a YAML file, or the name of a recipe that ships with the package",
    )
    add_recipe_options(parser)
    return parser.parse_args(argv)


def train(plan: Plan) -> Recorder:
    """Builds TorchTitan's Trainer of ``plan``, trains, and prints the summary on rank 0.

    Returns what the rank that knows the loss has recorded.
    """
    from torchtitan.observability import structured_logger as sl
    from torchtitan.tools.logging import init_logger

    from neuron_dist.titan import shims
    from neuron_dist.titan.progress import Progress
    from neuron_dist.titan.rank_logs import log_to

    config, layout = plan.config, plan.layout
    for name, value in (
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "0"),
    ):
        os.environ.setdefault(name, value)
    shims.after_import(plan.device, plan.backend, plan.cluster)
    init_logger()
    if plan.recipe.own.trace and plan.device == "neuron":
        session.trace_to(Path(config.dump_folder) / plan.recipe.own.trace)
    logs = Path(config.dump_folder) / "logs"
    recorder = Recorder()
    progress = Progress(_rank(), config.training.steps, recorder, plan.device)
    log_to(logs, _rank(), layout.metrics_rank, progress.line)
    sl.init_structured_logger(
        source="training",
        output_dir=config.dump_folder,
        enable=config.debug.enable_structured_logging,
    )
    trainer: Any = None
    try:
        trainer = config.build()
        recorder.attach(trainer.metrics_processor)
        _mark_steps(trainer, progress if _rank() == layout.metrics_rank else None)
        if getattr(config.checkpoint, "create_seed_checkpoint", False):
            trainer.checkpointer.save(curr_step=0, last_step=True)
        else:
            trainer.train()
        recorder.saw_memory(_peak_bytes(plan.device))
        recorders = _gather(recorder, layout.ranks)
    except Exception:
        if trainer is not None:
            with contextlib.suppress(Exception):
                trainer.close()
        raise
    trainer.close()
    torch.distributed.destroy_process_group()
    if _rank() == 0:
        memory = "resident" if plan.device == "cpu" else f"of {plan.device} memory"
        where = f"device {plan.device}, backend {plan.backend}, {plan.cluster}"
        text = summary(
            plan.recipe.name, str(layout), where, recorders, layout.metrics_rank, memory, logs
        )
        print(f"{text}\n{session.summary()}\n" if plan.device == "neuron" else text, flush=True)
    return recorders[layout.metrics_rank]


def _simulate(section: ClusterSection, local_ranks: int) -> None:
    """Tells the device which cluster it is part of; it looks at its first use, which is in the check already."""
    try:
        cluster = load_cluster(section.product, section.instances, section.lnc)
    except ClusterError:
        return  # the check says what is wrong
    os.environ["NEURON_DIST_CLUSTER"] = cluster.product
    os.environ["NEURON_LOGICAL_NC_CONFIG"] = str(cluster.lnc)
    if cluster.cores_per_instance > _MAX_DEVICES:
        os.environ.setdefault("NEURON_RT_NUM_CORES", str(local_ranks))


def _mark_steps(trainer: Any, progress: Any) -> None:
    """Ends a step of simulated time where TorchTitan ends its own: it has an optimizer for each model part. Tells
    ``progress`` on the rank that has it."""
    session.steps_end_here()
    train_step = trainer.train_step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = train_step(*args, **kwargs)
        session.end_step()
        if progress is not None:
            progress.step_ended(trainer.step)
        return result

    trainer.train_step = step


def _gather(recorder: Recorder, ranks: int) -> list[Recorder]:
    gathered: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(gathered, recorder)
    return gathered


def _peak_bytes(device: str) -> int:
    from torchtitan.tools import utils

    return int(utils.device_module.memory_stats().get("reserved_bytes.all.peak", 0))


def _need_device(device: str) -> None:
    if device == "neuron" and not hasattr(torch, device):
        raise RecipeError(
            [
                Problem(
                    "--device",
                    "",
                    device,
                    f"torch has no device {device!r} here; --device cpu always works",
                )
            ]
        )


def offline() -> None:
    """Keeps the Hugging Face libraries off the network, unless the user says otherwise."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _threads(local_ranks: int) -> None:
    """As many threads a rank as there are cores for it, where OMP_NUM_THREADS does not say."""
    if "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, len(os.sched_getaffinity(0)) // local_ranks)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(
            [Problem("command line", "", None, f"{message}\n    {self.format_usage().strip()}")]
        )


def _refuse(text: str) -> NoReturn:
    """Ends every rank with the same status, the message coming once, from rank 0.

    torchrun ends all ranks as soon as one has ended, so they wait for each other before they do.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_RECIPE))
    if _rank() == 0:
        print(f"neuron_dist.train: {text}", file=sys.stderr, flush=True)
    with contextlib.suppress(Exception):  # a rank that has gone already ends the waiting, too
        _meet(timedelta(seconds=30))
    os._exit(EXIT_RECIPE)


def _meet(timeout: timedelta) -> None:
    """Returns when all ranks are here, without a process group."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1:
        return
    store, _, _ = next(torch.distributed.rendezvous("env://", timeout=timeout))
    key = f"neuron_dist.train/refused/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    deadline = time.monotonic() + timeout.total_seconds()
    store.add(key, 1)
    while store.add(key, 0) < ranks and time.monotonic() < deadline:
        time.sleep(0.02)
