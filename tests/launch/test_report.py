"""neuron-dist report and neuron-dist trace: tables, JSON, files and refusals."""

import gzip
import json
import shutil
from dataclasses import replace

import pytest

from collectives import load_cluster
from launch.report import command
from neuron_dist.simulation import units
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.trace import NOBODY, Kind, read
from neuron_dist.simulation.what_if import what_if
from tests.launch.run import call, refused
from tests.simulation.trace_event import check
from tests.simulation.training_runs import Program, fsdp_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fsdp_run(tmp_path_factory.mktemp("run"))


def test_tables_and_page(run):
    output = call(f"report {run}")
    assert output.startswith("Simulated figures\n  simulated  trn2.48xlarge")
    for heading in (
        "Steps\n",
        "Collectives, of one",
        "Mesh axes, of one",
        "Busiest links",
        "Operators",
        "Ranks; rank 3",
        "HBM of rank 0",
    ):
        assert f"\n\n{heading}" in output
    assert "What the real TorchNeuron would not do" in output
    replayed = replay(read(run))
    step = sum(s.time_ns for s in replayed.steps[1:]) / 2
    (line,) = [line for line in output.splitlines() if line.startswith("step time   ")]
    assert line.split()[2:6] == [
        *units.time(analyse(read(run)).figures.overall.step_ns).split(),
        *units.time(step).split(),
    ]
    rows = what_if(read(run))
    assert all(f"\n{row.name}  " in output and units.time(row.step_ns) in output for row in rows)
    assert output.endswith(f"page: {run}/report.html\n")
    assert "<!DOCTYPE html>" in (run / "report.html").read_text()


def test_json_is_the_numbers(run, tmp_path):
    from click.testing import CliRunner

    result = CliRunner().invoke(
        command, [str(run), "--json", "--html", str(tmp_path / "other.html")]
    )
    assert result.exit_code == 0 and (tmp_path / "other.html").stat().st_size > 10_000
    assert result.stderr == f"page: {tmp_path / 'other.html'}\n"
    found = json.loads(result.stdout)
    overall = found["overall"]
    assert overall["compute_ns"] + overall["exposed_ns"] + overall["idle_ns"] == pytest.approx(
        overall["step_ns"]
    )
    assert found["counted_steps"] == [2, 3] and len(found["steps"]) == 3
    assert found["hot_link"] == found["links"][0]["link"] and found["critical_rank"] == 3
    assert found["hbm"]["peak_bytes"] == sum(found["hbm"]["holders"].values())
    assert {c["op"] for c in found["collectives"]} == {
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "send",
    }
    assert found["fidelity"][0]["ranks"] == [0, 1]
    assert found["contended"]["overall"]["step_ns"] >= overall["step_ns"]
    assert found["what_if"] == [{"name": r.name, "step_ns": r.step_ns} for r in what_if(read(run))]


def test_replays_can_be_left_out(run, tmp_path):
    output = call(f"report {run} --no-replay --html {tmp_path}/page.html")
    assert "contended" not in output and "What if" not in output
    page = (tmp_path / "page.html").read_text()
    assert "optimistic bound" in page and 'id="whatif"' not in page


def test_a_cluster_described_otherwise_is_not_replayed(tmp_path):
    program = Program(tmp_path, 2, cluster=replace(load_cluster(), digest="0123"))
    program[0].kernel("aten::mm", flops=10**9)
    program.step()
    output = call(f"report {program.close()}")
    assert (
        "note: trn2.48xlarge (LNC 2) was described otherwise during the run" in output
        and "What if" not in output
    )


def test_a_trace_that_ends_in_the_middle_is_noted(tmp_path):
    program = Program(tmp_path, 2)
    for rank in program.ranks:
        rank.kernel("aten::mm", flops=10**9)
    program.step()
    rank = program[0]
    rank.add(
        Kind.ISSUE,
        name="barrier",
        group=rank.groups["default_pg"],
        a=1,
        d=NOBODY,
        start_ns=rank.host_ns,
    )
    rank.add(Kind.WORK_WAIT, start_ns=rank.host_ns)
    output = " ".join(call(f"report {program.close()}").split())
    assert "note: the trace ends in the middle, so its replay does, too: " in output


def test_one_step(run, tmp_path):
    output = call(f"report {run} --step 1 --html {tmp_path}/one.html")
    assert "step 1 alone" in output and "broadcast" in output
    assert "Ranks over step 1, simulated" in (tmp_path / "one.html").read_text()
    assert "there is no step 4, expected one of the steps that all ranks ended: 1 to 3" in refused(
        f"report {run} --step 4"
    )


def test_what_is_not_a_run_is_named(run, tmp_path):
    assert f"{tmp_path}/none: no such folder" in refused(f"report {tmp_path}/none")
    assert f"{tmp_path}: holds no trace" in refused(f"trace {tmp_path}")
    shutil.copytree(run, tmp_path / "part")
    (tmp_path / "part" / "rank_00002.trace").unlink()
    assert "lacks rank_00002.trace; the run had 4 ranks" in refused(f"report {tmp_path}/part")
    assert "--html" in refused(f"report {run} --html {tmp_path}/no/such/page.html")
    assert "-o" in refused(f"trace {run} -o {tmp_path}/no/such/trace.json")
    assert "did you mean 'report'" in refused("repor")


def test_an_op_that_the_planner_lacks_is_named(tmp_path):
    program = Program(tmp_path, 2)
    for rank in program.ranks:
        rank.add(
            Kind.COLLECTIVE,
            name="all_reduc",
            group=rank.groups["default_pg"],
            a=1,
            b=64,
            start_ns=1,
            end_ns=9,
        )
        rank.kernel("aten::mm", flops=10**9)
    program.step()
    assert "all_reduc" in refused(f"report {program.close()}")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_chrome_trace(run, tmp_path, name):
    output = call(f"trace {run} -o {tmp_path}/{name}")
    data = (tmp_path / name).read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith("gz") else data)
    check(document)
    assert output == (
        f"{tmp_path}/{name}: {len(document['traceEvents'])} events of 4 ranks, simulated time; open it in ui.perfetto.dev\n"
    )


def test_chrome_trace_goes_beside_the_run(run):
    call(f"trace {run}")
    assert (run / "trace.json.gz").exists()
