"""The data of a recipe in one order for all numbers of ranks, so that a run may go on with another.

TorchTitan's own loader gives each data-parallel rank its own part of the text and its own position in it, so the
batches depend on the number of those ranks, and a checkpoint's position is lost with another number. Here the text is
one sequence of samples, and the ranks take turns: sample ``i`` is that of rank ``i % ranks``. A global batch is the
same samples whoever computes it, and the position in the text is one for all ranks.

Each rank reads and tokenizes the whole text, which costs little beside a training step on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader, HuggingFaceTextDataset

__all__ = ["GlobalOrderDataLoader", "GlobalOrderDataset"]

_STATE = "global_order"


class GlobalOrderDataset(HuggingFaceTextDataset):
    """TorchTitan's text dataset, of which each of ``dp_world_size`` ranks sees every so many-th sample.

    Its state is the position after the last sample of the last round, the same on all ranks. Samples at the end of
    the text that are too few for a round are left out.
    """

    def __init__(self, *, dp_rank: int, dp_world_size: int, **kwargs: Any) -> None:
        super().__init__(dp_rank=0, dp_world_size=1, **kwargs)
        self._rank = dp_rank
        self._ranks = dp_world_size

    def __iter__(self) -> Iterator[Any]:
        samples = super().__iter__()
        while len(round_ := list(islice(samples, self._ranks))) == self._ranks:
            yield round_[self._rank]


class GlobalOrderDataLoader(HuggingFaceTextDataLoader):
    """TorchTitan's text loader over :class:`GlobalOrderDataset`; a checkpoint has one state for all ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(HuggingFaceTextDataLoader.Config):
        """As its base."""

    def __init__(
        self,
        config: HuggingFaceTextDataLoader.Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = 1,
        **kwargs: Any,
    ) -> None:
        dataset = GlobalOrderDataset(
            dataset_name=config.dataset,
            dataset_path=config.dataset_path,
            tokenizer=tokenizer,
            seq_len=seq_len,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            infinite=config.infinite,
        )
        ParallelAwareDataloader.__init__(
            self,
            dataset,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            num_workers=config.num_workers,
            persistent_workers=config.persistent_workers,
            pin_memory=config.pin_memory,
            prefetch_factor=config.prefetch_factor,
            snapshot_every_n_steps=snapshot_every_n_steps,
            batch_size=local_batch_size,
        )

    def state_dict(self) -> dict[str, Any]:
        """The position in the text, under one key for all ranks."""
        own = super().state_dict()
        return {_STATE: own[self._rank_id]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a position that any number of ranks has saved."""
        if state_dict:
            own = {self._rank_id: state_dict[_STATE], "world_size": self.dp_world_size}
            super().load_state_dict(own)
