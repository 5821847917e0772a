"""``neuron-dist ls``: the devices of one instance, in neuron-ls's table, picture and JSON."""

from __future__ import annotations

import json
from typing import Any

import click

from collectives.spelling import ranges
from collectives.topology import Cluster
from launch.options import cluster_options, load
from launch.processes import DeviceProcess, device_processes

__all__ = ["command", "devices"]

INSTANCE_ID = "i-simulated"

TRN2_BUSES = ["cc", "b5", "b6", "cb", "6f", "58", "59", "6e", "9b", "84", "85", "9a", "f8", "e1", "e2", "f7"]
TRN2_NODE_0 = range(4, 12)
TRN2_CPUS = ("0-47,96-143", "48-95,144-191")
"""AWS Neuron SDK documentation, tools/neuron-sys-tools/neuron-ls.rst, the table of a trn2.48xlarge."""


def _host(product: str, device: int) -> tuple[str, str, str]:
    """(PCI address, CPUs, NUMA node) of a device as AWS publishes them; NA where it does not."""
    if product == "trn2.48xlarge" and device < len(TRN2_BUSES):
        node = int(device not in TRN2_NODE_0)
        return f"{TRN2_BUSES[device]}:00.0", TRN2_CPUS[node], str(node)
    if product in ("trn1.32xlarge", "trn1n.32xlarge"):  # the same page, an older version, of a trn1.32xlarge
        return f"00:{device + 4:02x}.0", "NA", "NA"
    return "NA", "NA", "NA"


def devices(cluster: Cluster, processes: list[DeviceProcess]) -> list[dict[str, Any]]:
    """The devices of one instance with the keys of ``neuron-ls -j``."""
    from collectives.topology import topology_of

    topology, per_chip = topology_of(cluster), cluster.logical_cores_per_chip
    found = []
    for chip in range(cluster.chips_per_instance):
        bdf, cpus, node = _host(cluster.product, chip)
        found.append(
            {
                "neuron_device": chip,
                "bdf": bdf,
                "cpu_affinity": cpus,
                "numa_node": node,
                "connected_to": topology.neighbours(chip),
                "nc_count": per_chip,
                "logical_neuroncore_config": cluster.lnc,
                "memory_size": cluster.hbm_bytes_per_chip,
                "neuroncore_ids": list(range(chip * per_chip, (chip + 1) * per_chip)),
                "neuron_processes": [
                    {"pid": p.pid, "command": p.command, "neuron_runtime_version": p.version}
                    for p in processes
                    if chip in {core // per_chip for core in p.cores}
                ],
            }
        )
    return found


@click.command("ls")
@cluster_options
@click.option("--instances", type=click.IntRange(1), default=1, help="Instances of the cluster [1].")
@click.option("-w", "--wide", is_flag=True, help="Also show processes, with more of their command line.")
@click.option("-a", "--show-all-procs", "everything", is_flag=True, help="Also show processes.")
@click.option("-t", "--topology", "picture", is_flag=True, help="Also draw the links between devices.")
@click.option("-j", "--json-output", "as_json", is_flag=True, help="Print JSON with the keys of neuron-ls.")
def command(
    cluster: str | None, lnc: int | None, instances: int, wide: bool, everything: bool, picture: bool, as_json: bool
) -> None:
    """Show the simulated devices, as neuron-ls does.

    The devices of one instance: all instances of a cluster are alike. PCI address, CPU affinity and NUMA node are
    those that AWS publishes for the instance type, or NA; they say nothing of this machine. Processes are those
    of this machine that hold memory of a simulated device.
    """
    described = load(cluster, instances, lnc)
    with_processes = wide or everything or as_json
    found = devices(described, device_processes() if with_processes else [])
    if as_json:
        click.echo(json.dumps(found, indent=4))
        return
    click.echo(f"instance-type: {described.product}")
    click.echo(f"instance-id: {INSTANCE_ID}")
    click.echo(f"logical-neuroncore-config: {described.lnc}")
    if instances > 1:
        click.echo(f"instances: {instances} alike, {described.cores} NeuronCores; one is shown")
    click.echo(_table(found, width=(80 if wide else 40) if with_processes else 0))
    if picture:
        from collectives.draw import text
        from collectives.topology import topology_of

        click.echo("\nNeuron Device Topology (links at the margin go round to the other side)")
        click.echo(text(topology_of(described)), nl=False)


def _table(found: list[dict[str, Any]], width: int) -> str:
    """neuron-ls's table; with ``width`` characters of the commands, or without processes if it is 0."""
    header = [["NEURON", "DEVICE"], ["NEURON", "CORES"], ["NEURON", "CORE IDS"], ["NEURON", "MEMORY"]]
    header += [["CONNECTED", "DEVICES"], ["PCI", "BDF"], ["CPU", "AFFINITY"], ["NUMA", "NODE"]]
    if width:
        header += [["PID", ""], ["COMMAND", ""], ["RUNTIME", "VERSION"]]
    blocks: list[list[list[str]]] = []
    for d in found:
        bdf = d["bdf"] if d["bdf"] == "NA" else f"0000:{d['bdf']}"
        row = [str(d["neuron_device"]), str(d["nc_count"]), ranges(d["neuroncore_ids"]).replace(" ", "")]
        row += [f"{d['memory_size'] >> 30} GB", ", ".join(map(str, d["connected_to"]))]
        row += [bdf, d["cpu_affinity"], d["numa_node"]]
        rows = [row]
        if width:
            processes = [
                [str(p["pid"]), _short(p["command"], width), p["neuron_runtime_version"]]
                for p in d["neuron_processes"]
            ] or [["NA", "NA", "NA"]]
            rows = [(row if not i else [""] * len(row)) + p for i, p in enumerate(processes)]
        blocks.append(rows)
    every = [row for rows in blocks for row in rows]
    widths = [max(len(r[i]) for r in (*every, *zip(*header, strict=True))) for i in range(len(header))]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"

    def line(cells: Any, centred: bool = False) -> str:
        return "|" + "|".join(f" {c:^{w}} " if centred else f" {c:<{w}} " for c, w in zip(cells, widths, strict=True)) + "|"

    lines = [rule, *(line(cells, True) for cells in zip(*header, strict=True)), rule]
    for rows in blocks:
        lines += [line(row) for row in rows]
        if any(len(b) > 1 for b in blocks):
            lines.append(rule)
    return "\n".join(lines if lines[-1] == rule else [*lines, rule])


def _short(command: str, width: int) -> str:
    return command if len(command) <= width else command[: width - 3] + "..."
