"""How numbers of ranks, cores and steps are written for a person."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ranges", "ranks"]


def ranges(numbers: Sequence[int]) -> str:
    """``0-3, 8, 12-60:4``, as ``--ranks`` reads it."""
    parts, at = [], 0
    while at < len(numbers):
        end, step = at + 1, 1
        if end < len(numbers):
            step = numbers[end] - numbers[at]
        while step > 0 and end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if end - at < (2 if step == 1 else 3):
            end = at + 1
            parts.append(str(numbers[at]))
        else:
            parts.append(f"{numbers[at]}-{numbers[end - 1]}" + (f":{step}" if step > 1 else ""))
        at = end
    return ", ".join(parts)


def ranks(numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2``, ``ranks 0-5, 7``."""
    return f"rank{'s' * (len(numbers) != 1)} {ranges(sorted(numbers))}"
