"""The table of environment variables: every row, and spellings near it."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from neuron_dist.device import variables

ROOT = Path(variables.__file__).parents[2]
TABLE = variables.table()

# For each honoured variable: a value, and a Python expression that is true because of it and of nothing else.
EFFECTS = {
    "NEURON_RT_VISIBLE_CORES": ("0-3,8", "torch.neuron.device_count() == 5"),
    "NEURON_RT_NUM_CORES": ("8", "torch.neuron.device_count() == 8"),
    "NEURON_LOGICAL_NC_CONFIG": (
        "1 NEURON_RT_NUM_CORES=4",
        "torch.neuron.get_device_properties().total_memory == 12 << 30",
    ),
    "NEURON_RT_VIRTUAL_CORE_SIZE": (
        "1 NEURON_RT_NUM_CORES=4",
        "torch.neuron.get_device_properties().total_memory == 12 << 30",
    ),
    "NEURON_LAUNCH_BLOCKING": ("1", "blocking()"),
    "NEURON_DIST_CLUSTER": ("trn1.32xlarge", "torch.neuron.get_device_properties().name == 'trn1'"),
    "NEURON_DIST_FP32_ACCUMULATION": ("1", "accumulates()"),
    "NEURON_DIST_SIMULATION": ("off", "not _C._simulation()"),
}
# Honoured ones that tests of other packages cover, by the file that does.
ELSEWHERE = {
    "HF_DEACTIVATE_ASYNC_LOAD": None,  # transformers'
    "NEURON_DIST_ALGORITHM": "distributed",
    "NEURON_DIST_FIDELITY": "fidelity",
    "NEURON_DIST_FIDELITY_RELEASE": "fidelity",
    "NEURON_DIST_SUMMARY": "simulation",
    "NEURON_DIST_TRACE": "simulation",
    "NEURON_DIST_TRACE_MIB": "simulation",
}

PROGRAM = """
import os, sys, warnings
for pair in sys.argv[1].split(" "):
    name, _, value = pair.partition("=")
    os.environ[name] = value
import torch
from neuron_dist import _C

def blocking():
    x = torch.ones(1 << 20, device="neuron")
    y = x * 2
    return _C._host_ns() == _C._device_ns(0) > 0

def accumulates():
    import torch.distributed as dist
    dist.init_process_group("neuron", store=dist.HashStore(), rank=0, world_size=1)
    made = dist.group.WORLD._get_backend(torch.device("neuron")).options.fp32_accumulation
    dist.destroy_process_group()
    return made

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.ones(1, device="neuron:0") + 1
    torch.ones(1, device="neuron:0")
for w in caught:
    print("warning:", w.message)
print("holds:", eval(sys.argv[2]))
"""


def run(pairs, expression="True"):
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, pairs, expression],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stdout.splitlines() if line.startswith("warning:")]
    return warned, done.stdout.splitlines()[-1] == "holds: True"


def test_every_honoured_row_is_covered():
    honoured = {name for name, row in TABLE.items() if row.honoured}
    assert honoured == EFFECTS.keys() | ELSEWHERE.keys()
    for name, folder in ELSEWHERE.items():
        if folder:
            files = (ROOT / "tests" / folder).rglob("*.py")
            assert any(name in file.read_text() for file in files), name


@pytest.mark.parametrize("name", EFFECTS)
def test_honoured(name):
    value, expression = EFFECTS[name]
    warned, holds = run(f"{name}={value}", expression)
    assert holds and not warned
    _, without = run("UNRELATED=1", expression)
    assert not without


def test_ignored_rows_warn_once_all_in_one_process():
    ignored = [row for row in TABLE.values() if not row.honoured]
    assert len(ignored) > 25
    warned, _ = run(" ".join(f"{row.name}=something" for row in ignored))
    assert len(warned) == len(ignored)
    for row, line in zip(sorted(ignored, key=lambda row: row.name), warned, strict=True):
        expected = f"warning: {row.name}=something changes nothing on the simulated device: "
        assert line == expected + row.says


def test_values_that_ask_for_what_is_the_case_are_silent():
    pairs = {row.name: value for row in TABLE.values() for value in row.silent}
    assert pairs and not list(variables.messages(pairs))


@pytest.mark.parametrize(
    ("slip", "right"),
    [
        ("NEURON_RT_VISIBLE_CORE", "NEURON_RT_VISIBLE_CORES"),
        ("NEURON_LOGICAL_NC_CONF", "NEURON_LOGICAL_NC_CONFIG"),
        ("TORCH_NEURONX_NEFF_CACHEDIR", "TORCH_NEURONX_NEFF_CACHE_DIR"),
        ("NEURON_DIST_CLUSTERS", "NEURON_DIST_CLUSTER"),
    ],
)
def test_slips_are_hinted_at(slip, right):
    (line,) = variables.messages({slip: "1"})
    assert line == f"{slip} is not a variable that neuron-dist knows; did you mean {right}?"


def test_unknown_ones_far_from_any_are_left_alone():
    assert not list(variables.messages({"NEURON_MONITOR_CW_REGION": "x", "HOME": "/"}))


def test_a_wrong_value_is_refused():
    with pytest.raises(ValueError, match="NEURON_LAUNCH_BLOCKING is 'yes', expected 0 or 1"):
        list(variables.messages({"NEURON_LAUNCH_BLOCKING": "yes"}))


def test_only_the_first_rank_of_a_host_warns(monkeypatch):
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variables.report()
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.warns(UserWarning, match="NEURON_CC_FLAGS=-O1 changes nothing"):
        variables.report()


def test_the_code_reads_no_variable_that_the_table_lacks():
    found = set()
    for package in ("neuron_dist", "collectives", "launch"):
        for file in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r'"((?:NEURON|TORCH_NEURONX)_[A-Z0-9_]+)"', file.read_text()))
    assert found and found <= TABLE.keys()
