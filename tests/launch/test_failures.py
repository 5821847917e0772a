"""Which failure of several is told as the first, and how the others are summed up; the text of the live line."""

from launch.failures import Failures
from launch.progress import step_text


def report(rank, time_ns, error, of_a_peer=False):
    return {
        "kind": "failed", "rank": rank, "time_ns": time_ns, "of_a_peer": of_a_peer, "error": error,
        "traceback": f"Traceback (most recent call last):\n  File \"a.py\", line {rank}, in <module>\n{error}\n",
    }  # fmt: skip


def test_the_first_is_first_in_time_unless_it_tells_of_a_peer():
    failures = Failures()
    assert not failures
    for rank, exit_code, time_ns in ((0, 1, 50), (1, -9, 40), (2, 1, 70), (3, 0, 80)):
        failures.ended(rank, 100 + rank, exit_code, time_ns, asked_to=False)
    failures.ended(4, 104, -15, 90, asked_to=True)
    failures.reported(report(0, 30, "torch.distributed.DistBackendError: rank 1 was killed", of_a_peer=True))
    failures.reported(report(2, 45, "ValueError: bad"))
    assert [f.rank for f in failures.in_order()] == [1, 2, 0, 4]
    assert failures.text() == (
        "rank 1 (pid 101) failed first: ended by SIGKILL\n"
        "3 other ranks failed after it: rank 2 ValueError: bad; rank 0 torch.distributed.DistBackendError: rank 1 was "
        "killed; rank 4 ended by SIGTERM"
    )


def test_many_ranks_are_one_line():
    failures = Failures()
    for rank in range(64):
        failures.ended(rank, rank, 1, 1000 + rank, asked_to=False)
        failures.reported(report(rank, 100 - rank, f"KeyError: {'lost' if rank == 63 else 'found'}"))
    told = failures.text()
    assert told.startswith("rank 63 (pid 63) failed first:\nTraceback (most recent call last):\n  File")
    assert told.endswith("KeyError: lost\n63 other ranks failed after it: ranks 0-62 KeyError: found")
    failures.clear()
    assert not failures


def test_five_kinds_of_failure_are_counted():
    failures = Failures()
    for rank in range(6):
        failures.ended(rank, rank, 10 + rank, rank, asked_to=False)
    assert failures.text().endswith("rank 3 ended with exit status 13; and 2 more kinds")


def test_the_live_line_says_what_is_known():
    step = {"step": 1, "steps": 30, "loss": None, "seconds": None, "left_s": None, "simulated_ns": None}
    assert step_text(step, None) == ""
    step |= {"loss": 5.5, "seconds": 0.517, "left_s": 14.6}
    assert step_text(step, 5.5) == "loss 5.50000  0.52 s a step  ETA 0:00:15"
    step |= {"simulated_ns": 1_920_000}
    assert step_text(step, 5.5) == "loss 5.50000  0.52 s a step (simulated 1.92 ms)  ETA 0:00:15"
