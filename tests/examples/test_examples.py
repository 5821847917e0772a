"""examples/: each is run in forked ranks and says what its README shows; one is started by torchrun, too.

examples/test_ranks.py is among the tests itself (``testpaths`` in pyproject.toml), examples/ecosystem has
tests/ecosystem.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
DDP = "step 5: loss 18.6836\nstep 10: loss 10.9886\nstep 15: loss 7.4781\nstep 20: loss 2.5572\n"
RUNS = [
    # command, ranks, the rank that prints, what it says
    ("ddp", 4, 0, DDP),
    ("ddp --backend gloo --device cpu", 2, 0, DDP),
    (
        "fsdp2",
        4,
        0,
        "step 2: loss 1.613, norm of the gradients 0.47\n"
        "step 4: loss 1.236, norm of the gradients 0.42\n"
        "step 6: loss 0.981, norm of the gradients 0.34\n"
        "step 8: loss 0.765, norm of the gradients 0.27\n"
        "parameters: 199936 in all, 49984 on rank 0\n",
    ),
    (
        "tensor_parallel",
        4,
        0,
        "first weight: (128, 32), of it on rank 0 (32, 32)\n"
        "output as on one device: True\n"
        "gradients as on one device: True\n",
    ),
    (
        "pipeline",
        4,
        3,
        "step 1: loss 0.4179\nstep 20: loss 0.1044\nlayers on the last of 4 stages: 1\n",
    ),
    (
        "custom_algorithm",
        8,
        0,
        "sums are right: True\n"
        "this all_reduce took 10.6 us of simulated time\n"
        "\n"
        "simulated us      star   Neuron's choice\n"
        "   1 KiB        10.2        13.0 (mesh)\n"
        "   1 MiB       173.8        35.6 (rdh)\n"
        "  64 MiB     10495.8      2000.4 (kangaring)\n",
    ),
    (
        "quick_tour",
        1,
        0,
        "result on neuron:0, equal to the CPU's: True\n"
        "memory: 4 MiB of 24 GiB allocated\n"
        "matmul of 1024 x 1024 in torch.float32: 55.0 us of simulated time\n"
        "matmul of 1024 x 1024 in torch.bfloat16: 14.9 us of simulated time\n"
        "all_reduce of 64 KiB over 64 cores: mesh, 16 us\n"
        "all_reduce of 65536 KiB over 64 cores: kangaring, 649 us\n"
        "ten steps: the loss falls from 384 to 47\n",
    ),
]
KEPT: list[dict] = []
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same(said, expected):
    """Equal but for the last digits of numbers, which depend on the processor's kernels."""
    numbers = [float(n) for n in NUMBER.findall(said)]
    return NUMBER.sub("0", said) == NUMBER.sub("0", expected) and numbers == pytest.approx(
        [float(n) for n in NUMBER.findall(expected)], rel=0.03
    )


@pytest.mark.neuron(backend=None, timeout=280)
@pytest.mark.parametrize(
    "command, world_size, speaker, expected", RUNS, ids=[run[0] for run in RUNS]
)
def test_in_ranks(command, world_size, speaker, expected, rank, monkeypatch, capsys):
    name, *arguments = command.split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    # Kept until the rank has ended: where DDP's last reference to a Gloo group goes, torch 2.13 waits for the group's
    # thread with the GIL held, which that thread may want.
    KEPT.append(runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__"))
    said = capsys.readouterr().out
    print(said)
    assert same(said, expected if rank == speaker else "")


@pytest.mark.timeout(310)
def test_by_torchrun():
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", FOLDER / "ddp.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert same(done.stdout, DDP)


def test_every_example_is_run_and_listed():
    examples = {file.name for file in FOLDER.glob("*.py")}
    assert examples == {f"{run[0].split()[0]}.py" for run in RUNS} | {"test_ranks.py"}
    readme = (FOLDER / "README.md").read_text()
    for name in examples:
        assert f"[{name}]({name})" in readme
    for command, _, _, expected in RUNS:
        assert command.replace("ddp ", "ddp.py ") in readme
        assert expected.splitlines()[-1] in readme, command
