"""Start ranks for a test, fast, and leave nothing behind.

``run_ranks(4, fn)`` calls ``fn`` in four processes whose process group is ready, and returns the four results.
"""

from neuron_dist.testing.errors import RankDied, RankError, RanksTimeout
from neuron_dist.testing.ranks import run_ranks

__all__ = ["RankDied", "RankError", "RanksTimeout", "run_ranks"]
