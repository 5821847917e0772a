"""Checks of many model types in forked processes: one that dies, hangs or fills memory costs one row.

The parent imports torch and transformers once, which takes longer than most checks, and never uses the device.
"""

from __future__ import annotations

import multiprocessing as mp
import resource
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait

import torch

from neuron_dist.testing.architectures.check import Row, check

__all__ = ["all_kinds", "run"]

CPU_SECONDS = 120
"""A check may use so much; time of the clock would depend on what else runs on the machine."""


def all_kinds() -> list[str]:
    """The model types of transformers' ``AutoModel``."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def run(kinds: list[str], jobs: int = 1) -> Iterator[Row]:
    """The rows of ``kinds``, as they are ready, from ``jobs`` processes at a time."""
    _preload()
    context = mp.get_context("fork")
    todo = list(reversed(kinds))
    running: dict[Connection, tuple[str, mp.process.BaseProcess]] = {}
    try:
        while todo or running:
            while todo and len(running) < jobs:
                kind = todo.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(kind, theirs), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (kind, process)
            ready = wait(list(running))
            for pipe in [pipe for pipe in running if pipe in ready]:
                yield _result(*running.pop(pipe), pipe)
    finally:
        for _, left in running.values():
            left.kill()
            left.join()


def _preload() -> None:
    """What every check needs: transformers imports most of itself with the first model."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    config = transformers.AutoConfig.for_model("bert", num_hidden_layers=1, hidden_size=12)
    with torch.device("meta"):
        transformers.AutoModel.from_config(config)


def _result(kind: str, process: mp.process.BaseProcess, pipe: Connection) -> Row:
    try:
        row = pipe.recv()
    except EOFError:
        row = None
    pipe.close()
    process.join()
    if row is not None:
        return row
    code = process.exitcode or 0
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    return Row(kind, why=f"its process ended {how}")


class TooLong(BaseException):
    """Not an Exception: what tries several inputs must not take it for one that does not fit."""


def _child(kind: str, pipe: Connection) -> None:
    def too_long(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGXCPU, too_long)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 30))
    begin = time.process_time()
    try:
        row = check(kind)
    except TooLong:
        row = Row(kind, why=f"size: more than {CPU_SECONDS} s at the smallest")
    except Exception as error:
        text = " ".join(str(error).split())
        stage = "package" if isinstance(error, ImportError) else "configuration"
        row = Row(kind, why=f"{stage}: {text[:160]}")
    row.seconds = round(time.process_time() - begin, 1)
    pipe.send(row)
