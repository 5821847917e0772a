"""The helper that starts ranks: results, errors, timeouts, and that nothing is left behind."""

import multiprocessing.util
import os
import select
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from neuron_dist.testing import RankDied, RankError, RanksTimeout, run_ranks


def whoami(greeting):
    return greeting, dist.get_rank(), dist.get_world_size(), os.environ["LOCAL_RANK"], os.getpid()


def sum_of_ranks():
    x = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(x)
    return x


def fail_on(rank):
    print("about to look")
    if dist.get_rank() == rank:
        raise KeyError("lost key")


def sleep_on(ranks):
    if dist.get_rank() in ranks:
        child = subprocess.Popen(["sleep", "600"])
        os.write(2, f"child {child.pid}\n".encode())
        time.sleep(600)
    return os.getpid()


def signal_self(rank, number):
    if dist.get_rank() == rank:
        os.kill(os.getpid(), number)
    return "lived"


def environment():
    assert not dist.is_initialized()
    return os.environ["GREETING"], os.environ["RANK"], torch.get_num_threads()


def default_device():
    return str(torch.ones(1).device)


def leave_child():
    return subprocess.Popen(["sleep", "600"]).pid


def folder_of_multiprocessing():
    return multiprocessing.util.get_temp_dir()


def init_by_environment():
    dist.init_process_group("gloo")
    return dist.get_rank()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually_gone(pid):
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_results_by_rank():
    results = run_ranks(3, whoami, "hello", backend="gloo")
    assert [r[:4] for r in results] == [("hello", i, 3, str(i)) for i in range(3)]
    assert len({r[4] for r in results} | {os.getpid()}) == 4


def test_tensors_as_results():
    assert run_ranks(2, sum_of_ranks, backend="gloo") == [torch.tensor([3])] * 2


def test_first_traceback_is_raised_with_rank_and_output():
    with pytest.raises(RankError, match=r"rank 1 of 2 failed in .*fail_on") as error:
        run_ranks(2, fail_on, 1, backend="gloo")
    assert error.value.rank == 1
    assert "in fail_on\n" in str(error.value) and "lost key" in str(error.value)
    assert "about to look" in str(error.value)
    assert isinstance(error.value.__cause__, KeyError)


def test_exceptions_as_results():
    good, bad = run_ranks(2, fail_on, 1, backend="gloo", return_exceptions=True)
    assert good is None and isinstance(bad, RankError)


def test_timeout_names_hung_ranks_and_their_stacks():
    with pytest.raises(RanksTimeout) as error:
        run_ranks(3, sleep_on, {0, 2}, backend="gloo", timeout=2)
    message = str(error.value)
    assert error.value.ranks == [0, 2]
    assert "ranks 0, 2 of 3 did not finish" in message
    assert message.count("in sleep_on") == 2 and "--- rank 1" not in message


def test_stopped_rank_times_out_and_is_killed():
    with pytest.raises(RanksTimeout, match=r"rank 1 \(pid \d+, stopped\)"):
        run_ranks(2, signal_self, 1, signal.SIGSTOP, backend="gloo", timeout=2)


def test_dead_rank_is_an_error():
    with pytest.raises(
        RankDied, match=r"rank 1 \(pid \d+\) ended without a result: killed by SIGKILL"
    ):
        run_ranks(2, signal_self, 1, signal.SIGKILL, backend="gloo")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_expected_death(number):
    lived, died = run_ranks(2, signal_self, 1, number, backend="gloo", expect_dead={1})
    assert lived == "lived"
    assert isinstance(died, RankDied) and died.exit_code == -signal.SIGKILL


def test_environment_without_process_group():
    results = run_ranks(
        2, environment, backend=None, env={"GREETING": "hi", "OMP_NUM_THREADS": "2"}
    )
    assert results == [("hi", "0", 2), ("hi", "1", 2)]


def test_a_program_can_rendezvous_by_itself():
    assert run_ranks(2, init_by_environment, backend=None) == [0, 1]


def test_device_becomes_the_default():
    assert run_ranks(1, default_device, backend="gloo", device="meta") == ["meta"]


def test_children_of_ranks_do_not_outlive_them():
    for pid in run_ranks(2, leave_child, backend="gloo"):
        assert eventually_gone(pid)


def test_folders_of_multiprocessing_do_not_outlive_ranks():
    assert not any(map(os.path.exists, run_ranks(2, folder_of_multiprocessing, backend=None)))


def test_function_in_main_is_refused():
    program = "from neuron_dist.testing import run_ranks\ndef f(): pass\nrun_ranks(1, f)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ValueError: f lives in __main__" in done.stderr


def test_killed_test_process_leaves_nothing():
    program = (
        "from neuron_dist.testing import run_ranks\n"
        "from tests.distributed.test_run_ranks import announce_and_sleep\n"
        "run_ranks(2, announce_and_sleep, backend='gloo')"
    )
    read, write = os.pipe()
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"ANNOUNCE": f"/proc/{os.getpid()}/fd/{write}"}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as process:
        pids = [int(line) for line in _lines(read, 2)]
        process.kill()
    os.close(write)
    os.close(read)
    assert all(eventually_gone(pid) for pid in pids)


def announce_and_sleep():
    with open(os.environ["ANNOUNCE"], "w") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(600)


def _lines(descriptor, count):
    data = b""
    while data.count(b"\n") < count:
        assert select.select([descriptor], [], [], 60)[0], "the ranks did not start"
        data += os.read(descriptor, 1000)
    return data.split()


def test_starts_fast_once_warm():
    run_ranks(4, sum_of_ranks, backend="gloo")
    start = time.monotonic()
    run_ranks(4, sum_of_ranks, backend="gloo")
    assert time.monotonic() - start < 5, (
        "ranks import torch instead of being forked from one that has"
    )
