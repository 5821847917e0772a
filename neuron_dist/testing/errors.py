"""What can go wrong with ranks, as exceptions that name the rank."""

from __future__ import annotations

from neuron_dist.forking import signal_name

__all__ = ["RankDied", "RankError", "RanksTimeout"]


class RankError(RuntimeError):
    """A rank raised; its traceback and its output are in the message, the exception itself is ``__cause__``."""

    def __init__(self, message: str, rank: int, output: str = "") -> None:
        super().__init__(message + output)
        self.rank = rank
        self.message = message
        """Without the output."""


class RankDied(RankError):
    """A rank's process ended without a result: killed by a signal, or left by ``os._exit``."""

    def __init__(self, rank: int, pid: int, exit_code: int, output: str = "") -> None:
        self.pid = pid
        self.exit_code = exit_code
        """As in :mod:`subprocess`: minus the signal's number where one ended it."""
        how = (
            f"killed by {signal_name(-exit_code)}"
            if exit_code < 0
            else f"exited with status {exit_code}"
        )
        super().__init__(f"rank {rank} (pid {pid}) ended without a result: {how}", rank, output)


class RanksTimeout(RuntimeError):
    """Some ranks did not finish in time; ``ranks`` says which, the message where each of them stood."""

    def __init__(self, message: str, ranks: list[int]) -> None:
        super().__init__(message)
        self.ranks = ranks
