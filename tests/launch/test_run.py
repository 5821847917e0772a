"""``neuron-dist run``: what a program finds in a forked rank, how failures are told, and that nothing is left."""

from __future__ import annotations

import ast
import json
import signal
import socket

import pytest

from .launched import launched, launched_together

ASKING = """
import atexit, os, random, sys
import numpy, torch
import torch.distributed as dist
import beside

def main():
    dist.init_process_group("neuron")
    x = torch.full((3,), float(dist.get_rank()), device="neuron")
    dist.all_reduce(x)
    names = ("LOCAL_RANK", "GROUP_RANK", "ROLE_NAME", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS")
    print(repr({
        "rank": dist.get_rank(), "sum": x[0].item(), "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(),
        "file": __file__, "main": sys.modules["__main__"].main is main, "threads": torch.get_num_threads(),
        "random": (random.random(), float(numpy.random.random())), "session": os.getsid(0) == os.getpid(),
        **{name: os.environ[name] for name in names},
    }))
    dist.destroy_process_group()

if __name__ == "__main__":
    atexit.register(print, "bye")
    main()
    sys.exit()
"""
FAILING = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

rank, what = int(os.environ["RANK"]), sys.argv[1]
Path(f"pid{rank}").write_text(str(os.getpid()))
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("neuron")
x = torch.ones(3, device="neuron")
dist.all_reduce(x)

def lose():
    raise KeyError("lost key")

if what == "raise" and rank == 1 and first:
    lose()
if what == "die" and rank == 2:
    os.kill(os.getpid(), 9)
if what == "exit" and rank == 0:
    sys.exit(7)
if what == "wait":
    if rank == 0:
        dist.all_reduce(x)  # the others never come
    Path("ready").touch()
    time.sleep(600)
dist.all_reduce(x)
print("through, attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@pytest.fixture
def failing(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    return tmp_path


@pytest.mark.parametrize("spelled", ["script", "module"])
def test_a_program_finds_what_python_gives_it(tmp_path, spelled):
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "asking.py").write_text(ASKING)
    (folder / "beside.py").write_text("")
    target = ("programs/asking.py",) if spelled == "script" else ("-m", "asking")
    place = tmp_path if spelled == "script" else folder
    run = launched(place, "run", "-n", "2", "--role", "trainer", *target, "--size", "3", "-n", "x y")
    assert run.code == 0, run.err
    found = sorted((ast.literal_eval(line) for line in run.out.splitlines() if line != "bye"), key=lambda a: a["rank"])
    assert run.out.splitlines().count("bye") == 2
    for rank, answer in enumerate(found):
        assert answer["rank"] == rank
        assert answer["sum"] == 1.0
        assert answer["argv"][1:] == ["--size", "3", "-n", "x y"]
        assert answer["path"] == str(folder)
        assert answer["cwd"] == str(place)
        assert answer["argv"][0] == answer["file"] == (target[0] if spelled == "script" else str(folder / "asking.py"))
        assert answer["main"]
        assert answer["session"]
        assert answer["LOCAL_RANK"] == str(rank)
        assert answer["ROLE_NAME"] == "trainer"
        assert answer["OMP_NUM_THREADS"] == str(answer["threads"])
    assert found[0]["random"][0] != found[1]["random"][0]
    assert found[0]["random"][1] != found[1]["random"][1]
    assert f"OMP_NUM_THREADS={found[0]['threads']} in each of 2 ranks" in run.err


def test_the_store_is_this_machines_alone(tmp_path):
    """On all addresses torch's store asks the name server for each rank's name, and waits where none answers."""
    (tmp_path / "listening.py").write_text(
        "import os\n"
        "port = f':{int(os.environ[\"MASTER_PORT\"]):04X} '\n"
        "lines = [line for name in ('tcp', 'tcp6') for line in open(f'/proc/net/{name}') if ' 0A ' in line]\n"
        "print([line.split()[1] for line in lines if port in line])\n"
    )
    run = launched(tmp_path, "run", "-n", "1", "listening.py")
    assert run.code == 0, run.err
    (address,) = ast.literal_eval(run.out)
    assert address.startswith("0100007F:")  # 127.0.0.1


def test_two_launchers_on_one_machine_find_each_other(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "sum.py").write_text(
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('neuron')\n"
            "one = torch.ones(1, device='neuron')\n"
            "dist.all_reduce(one)\n"
            "print(one.item())\n"
            "dist.destroy_process_group()\n"
        )
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "both")
    for run in launched_together(folders, "run", "--nnodes", "2", *rendezvous, "-n", "1", "sum.py"):
        assert (run.code, run.out) == (0, "2.0\n"), run.err


def test_what_is_preloaded_is_imported_once(tmp_path):
    (tmp_path / "slow.py").write_text("import os\nprint('imported by', os.getpid(), flush=True)\n")
    (tmp_path / "use.py").write_text("import slow; print('used', slow.__name__)")
    run = launched(tmp_path, "run", "-n", "2", "--preload", "slow", "use.py")
    assert run.code == 0, run.err
    assert run.out.count("imported by") == 1
    assert run.out.count("used slow") == 2


def test_an_exception_is_told_once_and_ranks_start_again_if_they_may(failing):
    run = launched(failing, "run", "-n", "3", "--max-restarts", "1", "--log-dir", "logs", "-r", "3", "failing.py", "raise")
    assert run.code == 0, run.err
    assert run.err.count("Traceback (most recent call last)") == 1
    told = run.err[run.err.index("rank 1 (pid") :]
    assert "failed first:\nTraceback" in told
    assert '  File "failing.py", line 17, in <module>\n    lose()\n' in told
    assert "KeyError: 'lost key'\n2 other ranks failed after it: rank" in told
    assert "launch/" not in told
    assert "all ranks start again, restart 1 of 1" in told
    first, second = sorted((failing / "logs").glob("*/attempt_*"))
    assert [f.read_text() for f in sorted(second.glob("*/stdout.log"))] == ["through, attempt 1\n"] * 3
    assert "KeyError: 'lost key'" in (first / "1" / "stderr.log").read_text()
    error = json.loads((first / "1" / "error.json").read_text())
    assert "lost key" in error["message"]["message"]


@pytest.mark.parametrize(
    ("what", "told"), [("die", "rank 2 (pid {2}) failed first: ended by SIGKILL"), ("exit", "rank 0 (pid {0}) failed first: ended with exit status 7")]
)  # fmt: skip
def test_a_death_is_told_before_what_it_did_to_others(failing, what, told):
    run = launched(failing, "run", "-n", "3", "failing.py", what)
    assert run.code == 1
    assert "Traceback" not in run.err
    pids = [(failing / f"pid{rank}").read_text() for rank in range(3)]
    assert told.format(*pids) in run.err
    assert "2 other ranks failed after it: rank" in run.err
    assert not run.left and not run.left_files


def test_what_cannot_be_preloaded(failing):
    run = launched(failing, "run", "-n", "2", "--preload", "failing2", "failing.py", "raise")
    assert run.code == 2 and "--preload: No module named 'failing2'" in run.err
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), name='sleeper', daemon=True).start()\n"
    (failing / "threaded.py").write_text(source)
    run = launched(failing, "run", "-n", "2", "--preload", "threaded", "failing.py", "raise")
    assert run.code == 2 and "--preload threaded: has started a thread (sleeper)" in run.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_to_the_launcher_ends_all_ranks(failing, number):
    run = launched(failing, "run", "-n", "2", "failing.py", "wait", interrupt=number)
    assert not run.left
    assert "Traceback" not in run.err
    if number == signal.SIGKILL:
        assert run.code == -number
    else:
        assert run.code == 1 and not run.left_files
        assert f"ended by {number.name}, and all ranks with it" in run.err


def test_tee_prefixes_lines_as_torchrun_does(tmp_path):
    (tmp_path / "say.py").write_text("import os; print('hello from', input(), os.environ['RANK'])")
    run = launched(
        tmp_path, "run", "-n", "1", "--role", "worker", "-t", "1", "--log-dir", "logs", "say.py", stdin="here\n"
    )
    assert run.code == 0, run.err
    assert run.out == "[worker0]:hello from here 0\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--nprocs-per-node", "2", "a.py"], "no option '--nprocs-per-node'; did you mean '--nproc-per-node'?"),
        (["-n", "2", "failng.py"], "no file 'failng.py'; did you mean 'failing.py'?"),
        (["-n", "two", "failing.py"], "--nproc-per-node: Unsupported nproc_per_node value: two"),
        (["-n", "0", "failing.py"], "--nproc-per-node: 0, expected 1 or more"),
        (["-n", "2", "-m", "no_such_module"], "no module named 'no_such_module'"),
        (["-n", "2", "--nnodes", "1:2:3", "failing.py"], "--nnodes: '1:2:3', expected a number, or MIN:MAX"),
        (["-n", "2", "--max-restarts", "-1", "failing.py"], "--max-restarts: -1, expected 0 or more"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told_before_a_rank_is_started(failing, args, told):
    run = launched(failing, "run", *args)
    assert run.code == 2
    assert told in " ".join(run.err.split())
