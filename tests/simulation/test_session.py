"""A process's part in simulated time: what its end prints, what a killed rank leaves, whose file is whose."""

import os
import subprocess
import sys
import textwrap

import pytest

from neuron_dist.simulation.trace import Kind, file_name, names_of, read, read_rank
from neuron_dist.testing import run_ranks
from tests.simulation import programs

TRAINS = """
    import torch
    net = torch.nn.Linear(64, 64, device="neuron")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.ones(8, 64, device="neuron")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(program, **env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "NEURON_DIST_SUMMARY": "on", **env},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_that_trained_ends_with_its_figures():
    done = run(TRAINS)
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert lines[0].split() == ["simulated", "trn2.48xlarge", "(LNC", "2),", "1", "rank"]
    assert len(lines) <= 10
    named = {line[2:13].strip(): line for line in lines}
    assert "mean of steps 2 to 3" in named["step time"] and "MFU" in named
    assert "none was written" in named["trace"]


def test_the_figures_can_be_left_out_and_need_a_step():
    assert run(TRAINS, NEURON_DIST_SUMMARY="off").stderr == ""
    assert run("import torch; torch.ones(1, device='neuron') + 1").stderr == ""
    assert run(TRAINS, NEURON_DIST_SIMULATION="off").stderr == ""


def test_the_program_may_say_where_its_steps_end(tmp_path):
    program = TRAINS.replace("import torch\n", "import torch; from neuron_dist import simulation\n")
    program = program.replace(
        "optimizer.zero_grad()", "optimizer.zero_grad(); simulation.end_step()"
    )
    run(program, NEURON_DIST_TRACE=str(tmp_path))
    steps = read(tmp_path)[0].of(Kind.STEP)
    # The first step had ended with the optimizer, before the program said otherwise.
    assert steps["a"].tolist() == [1, 2, 3, 4]


def test_memory_is_accounted_to_parameters_and_gradients(tmp_path):
    run(TRAINS.replace("SGD", "AdamW").replace("0.1", "1e-3"), NEURON_DIST_TRACE=str(tmp_path))
    trace = read(tmp_path)[0]
    memory = trace.of(Kind.MEMORY)
    last = memory[memory["a"] == 3]
    held = dict(zip(names_of(trace, last), last["b"].tolist(), strict=True))
    weights = 64 * 64 * 4
    assert held["parameters"] >= weights and held["gradients"] >= weights
    assert held["optimizer state"] >= 2 * weights
    assert sum(held.values()) == pytest.approx(last["allocated"][0], rel=0.02)


def test_a_killed_rank_leaves_its_trace_up_to_the_last_operator(tmp_path):
    env = {"NEURON_DIST_TRACE": str(tmp_path)}
    run_ranks(2, programs.killed, str(tmp_path), True, env=env, expect_dead={1})
    trace = read_rank(tmp_path / file_name(1))
    assert trace.rank == 1 and trace.header["world_size"] == 2
    kernels = trace.of(Kind.KERNEL)
    names = list(names_of(trace, kernels))
    assert names.count("aten::mm") == 101 and names[-1] == "aten::mm"
    assert (kernels["end_ns"] > kernels["start_ns"]).all()


def test_a_smaller_run_takes_the_place_of_a_larger_one(tmp_path):
    env = {"NEURON_DIST_TRACE": str(tmp_path)}
    for ranks in (4, 2):
        run_ranks(ranks, programs.killed, str(tmp_path), False, env=env)
        assert [t.rank for t in read(tmp_path)] == list(range(ranks))


def test_a_full_trace_says_so_and_the_run_goes_on(tmp_path):
    program = """
        import torch
        x = torch.zeros(4, device="neuron")
        for _ in range(20000):
            x += 1
        print(x.sum().item())
    """
    done = run(program, NEURON_DIST_TRACE=str(tmp_path), NEURON_DIST_TRACE_MIB="1")
    assert done.stdout == "80000.0\n"
    assert done.stderr.count("is full at") == 1
    assert len(read(tmp_path)[0].of(Kind.KERNEL)) == pytest.approx((1 << 20) / 80, rel=0.05)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.ones(1, device='neuron')"],
        env={**os.environ, "NEURON_DIST_TRACE": str(tmp_path / "file" / "trace")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode != 0
    assert (
        "NEURON_DIST_TRACE" in done.stderr
        and f"{tmp_path}/file/trace: Not a directory" in done.stderr
    )
