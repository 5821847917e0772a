"""neuron-dist ls: neuron-ls's table, keys and picture."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from launch import processes
from launch.ls import command, devices
from tests.launch.run import ROOT, call, refused

KEYS = [
    "neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count", "logical_neuroncore_config",
    "memory_size", "neuroncore_ids", "neuron_processes",
]  # fmt: skip


def test_table_of_a_trn2():
    lines = call("ls").splitlines()
    assert lines[:3] == ["instance-type: trn2.48xlarge", "instance-id: i-simulated", "logical-neuroncore-config: 2"]
    columns = [" ".join(c.split()) for c in map(" ".join, zip(*(line.split("|")[1:-1] for line in lines[4:6]), strict=True))]
    assert columns == [
        "NEURON DEVICE", "NEURON CORES", "NEURON CORE IDS", "NEURON MEMORY", "CONNECTED DEVICES", "PCI BDF",
        "CPU AFFINITY", "NUMA NODE",
    ]  # fmt: skip
    first = [c.strip() for c in lines[7].split("|")[1:-1]]
    assert first == ["0", "4", "0-3", "96 GB", "12, 3, 4, 1", "0000:cc:00.0", "48-95,144-191", "1"]
    assert len({len(line) for line in lines[3:]}) == 1


def test_json_has_the_keys_of_neuron_ls():
    found = json.loads(call("ls -j"))
    assert len(found) == 16
    assert all(list(d) == KEYS for d in found)
    assert found[5]["connected_to"] == [1, 4, 9, 6]
    assert found[5]["memory_size"] == 103079215104
    assert found[5]["neuroncore_ids"] == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("arguments", "chips", "cores"),
    [("--cluster trn1.32xlarge", 16, 2), ("--lnc 1", 16, 8), ("--cluster trn2-ultraserver", 64, 4), ("--cluster trn3-gen2", 144, 4)],
)
def test_other_clusters(arguments, chips, cores):
    found = json.loads(call(f"ls -j {arguments}"))
    assert len(found) == chips
    assert {d["nc_count"] for d in found} == {cores}


def test_the_environment_names_the_cluster(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_CLUSTER", "trn1.2xlarge")
    assert "instance-type: trn1.2xlarge" in call("ls")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "two")
    assert "NEURON_LOGICAL_NC_CONFIG: 'two' is not a whole number" in refused("ls")


def test_picture():
    assert "---[ 0]---[ 1]---[ 2]---[ 3]---" in call("ls -t")


def test_several_instances_are_alike():
    assert "instances: 4 alike, 256 NeuronCores; one is shown" in call("ls --instances 4")


def test_processes_by_device(monkeypatch):
    mine = processes.DeviceProcess(42, (5, 6), "python " + "x" * 100, "0.1.0")
    monkeypatch.setattr("launch.ls.device_processes", lambda: [mine])
    table = CliRunner().invoke(command, ["-a"]).output
    (line,) = [row for row in table.splitlines() if "| 42 " in row]
    assert line.startswith("| 1 ") and "xxx... | 0.1.0" in line
    from collectives.topology import load_cluster

    found = devices(load_cluster(), [mine])
    assert [len(d["neuron_processes"]) for d in found] == [0, 1] + [0] * 14


def test_errors_name_the_nearest_spelling():
    assert "did you mean 'trn2.48xlarge'" in refused("ls --cluster trn2.48xlarg")
    assert "expected 1 or 2" in refused("ls --lnc 3")
    assert "did you mean 'ls'" in refused("lss")
    assert "--topology" in refused("ls --topolgy")


def test_nothing_loads_torch():
    program = (
        "import sys\nfrom launch.cli import main\n"
        "for line in ('ls -t', 'explain all_reduce --bytes 4M --ranks 0-15', 'nccom-test -r 64 allr'):\n"
        "    try: main(line.split())\n"
        "    except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
