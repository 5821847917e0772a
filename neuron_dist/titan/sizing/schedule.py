"""How many micro-batches of each stage a pipeline rank keeps activations of, by torch's own schedules."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

__all__ = ["in_flight", "stages_of_rank"]


def stages_of_rank(rank: int, degree: int, schedule: str, stages: int) -> tuple[int, ...]:
    """The stages, of ``stages`` in all, that pipeline rank ``rank`` of ``degree`` holds."""
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping

    return _get_pp_rank_to_stage_indices_mapping(rank, degree, schedule, stages)


def in_flight(
    rank: int, degree: int, schedule: str, stages: int, micro_batches: int
) -> list[dict[int, int]]:
    """The moments at which pipeline rank ``rank`` keeps the most: stage -> micro-batches that have run forward and not
    yet backward.

    With a schedule that splits the backward pass, activations count until the weights have their gradients. For a
    schedule from a CSV file, which is not read, all micro-batches count.

    Raises ValueError where the schedule refuses the numbers.
    """
    kind = schedules.get_schedule_class(schedule)
    mine = stages_of_rank(rank, degree, schedule, stages)
    if issubclass(kind, schedules.Schedule1F1B):
        return [{mine[0]: min(micro_batches, degree - rank)}]
    if issubclass(kind, schedules.PipelineScheduleSingle):
        return [dict.fromkeys(mine, micro_batches)]
    order = _order(kind, rank, degree, stages, mine, micro_batches)
    if order is None:
        return [dict.fromkeys(mine, micro_batches)]
    now = dict.fromkeys(mine, 0)
    moments: set[tuple[int, ...]] = set()
    for action in order:
        for step in action.sub_actions or (action,):
            if step.computation_type is schedules.FORWARD:
                now[step.stage_index] += 1
                moments.add(tuple(now.values()))
            elif step.computation_type in (schedules.FULL_BACKWARD, schedules.BACKWARD_WEIGHT):
                now[step.stage_index] -= 1
    most = [m for m in moments if not any(m != n and _at_most(m, n) for n in moments)]
    return [dict(zip(mine, m, strict=True)) for m in sorted(most)]


def _at_most(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


def _order(
    kind: Any, rank: int, degree: int, stages: int, mine: tuple[int, ...], micro_batches: int
) -> list[Any] | None:
    """What the rank does, action by action; None of a schedule that has no order of its own."""
    stand_ins = [
        SimpleNamespace(
            num_stages=stages,
            group_size=degree,
            group_rank=rank,
            stage_index=stage,
            is_first=stage == 0,
            is_last=stage == stages - 1,
            submod=None,
        )
        for stage in mine
    ]
    level = schedules.logger.level
    schedules.logger.setLevel(logging.ERROR)
    try:
        made = kind(stand_ins, n_microbatches=micro_batches, loss_fn=lambda *args: None)
    finally:
        schedules.logger.setLevel(level)
    order = made.pipeline_order.get(rank)
    return [action for action in order if action is not None] if order else None
