"""neuron-dist replay: what it prints and writes is what the replay says."""

import json

import pytest

from collectives import load_cluster
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.trace import Kind, read
from tests.launch.run import call, refused
from tests.simulation.online import Online


@pytest.fixture
def folder(tmp_path):
    """Two steps of six ranks; two of the three groups share a link."""
    online = Online(tmp_path / "run", 6, [range(6), [0, 4], [1, 5]])
    for step in range(2):
        for rank in range(6):
            online.kernel(rank, flops=10**11)
        for g in (1, 2):
            for rank in online.groups[g]:
                online.call(rank, g, "all_gather", 64 << 20)
        for rank in range(6):
            online.call(rank, 0, "all_reduce", 4)
        for rank in range(6):
            for work in online.works[rank]:
                assert online.work_wait(rank, 0, work)
            online.step(rank, step)
    online.traces()
    return tmp_path / "run"


def numbers(folder, line=""):
    call(f"replay {folder} --json {folder}/numbers.json {line}")
    return json.loads((folder / "numbers.json").read_text())


def lines(output, title):
    """The rows of the table under a title, without its header."""
    return [
        line.split() for line in output.split(f"\n{title}", 1)[1].split("\n\n")[0].splitlines()[2:]
    ]


def test_table(folder):
    output = call(f"replay {folder}")
    result = replay(read(folder))
    assert output.startswith(
        "6 ranks on trn2.48xlarge (LNC 2); groups share links; times are simulated\n"
    )
    steps = lines(output, "Steps")
    # Both steps take the same time, so they share a line.
    assert {s.time_ns for s in result.steps} == {result.steps[0].time_ns}
    assert [row[0] for row in steps] == ["0-1"]
    assert [row[2] for row in steps] == [f"{result.steps[0].time_ns / 1e3:.2f}"]
    assert [row[3] for row in steps] == [f"{float(row[2]) / float(row[1]):.3f}" for row in steps]
    assert float(steps[0][3]) > 1.1
    gathers = [o for o in result.outcomes if o.group == "mesh_1"]
    row = next(row for row in lines(output, "Collectives") if row[0] == "mesh_1")
    assert row[:3] == ["mesh_1", "all_gather", "2"]
    taken = [
        str(len(gathers)),
        str(2 * (64 << 20)),
        *(
            f"{sum(ns) / 1e3:.2f}"
            for ns in ([o.alone_ns for o in gathers], [o.time_ns for o in gathers])
        ),
    ]
    assert row[4:8] == taken
    assert f"Hot link: {result.hot_link}, busy" in output
    assert lines(output, "Where transfers were held up")[0][:4] == ["chip", "0", "->", "chip"]


def test_without_contention_it_is_the_run(folder):
    found = numbers(folder, "--uncontended")
    assert all(s["online_ns"] == s["replayed_ns"] for s in found["steps"])
    assert all(o["slowdown"] == 1.0 for o in found["operations"])
    assert "Where transfers were held up" not in call(f"replay {folder} --uncontended")


def test_json(folder):
    found = numbers(folder)
    result = replay(read(folder))
    assert found["replayed_ns"] == result.makespan_ns
    assert [s["replayed_ns"] for s in found["steps"]] == [s.time_ns for s in result.steps]
    assert sum(o["contended_ns"] for o in found["operations"]) == sum(
        o.time_ns for o in result.outcomes
    )
    assert sum(li["bytes"] for li in found["links"]) == result.link_bytes.sum()
    assert found["what_if"] == found["unfinished"] == found["notes"] == []


def test_what_if(folder):
    rows = {row["name"]: row["step_ns"] for row in numbers(folder, "--what-if 2")["what_if"]}
    assert rows["NeuronLink 2 times faster"] < rows["replayed"] > rows["no contention"]
    assert "What if" in call(f"replay {folder} --what-if 3")


@pytest.mark.parametrize(
    ("options", "cluster"),
    [
        ("--cluster trn1.32xlarge", load_cluster("trn1.32xlarge")),
        ("--cluster trn1.2xlarge.yaml", None),
        ("--lnc 1", load_cluster(lnc=1)),
        ("--instances 3", load_cluster(instances=3)),
        ("--cluster trn2.3xlarge --lnc 1", load_cluster("trn2.3xlarge", lnc=1)),
    ],
)
def test_another_cluster(folder, options, cluster, tmp_path):
    if cluster is None:  # a file of one's own
        path = tmp_path / "own.yaml"
        path.write_text(
            "extends: trn2.48xlarge\nproduct: own\nassumptions: {launch_ns: {value: 0, source: none}}\n"
        )
        options, cluster = f"--cluster {path}", load_cluster(str(path))
    found = numbers(folder, options)
    assert found["cluster"] == str(cluster)
    assert found["replayed_ns"] == replay(read(folder), cluster).makespan_ns
    recorded = ", recorded on trn2.48xlarge (LNC 2)"
    assert recorded in call(f"replay {folder} {options}").splitlines()[0]


def test_the_retimed_traces_are_traces(folder, tmp_path):
    call(f"replay {folder} --cluster trn1.32xlarge --out {tmp_path}/new")
    expected = replay(read(folder), load_cluster("trn1.32xlarge"))
    for trace, wanted in zip(read(tmp_path / "new"), expected.traces, strict=True):
        assert (trace.records == wanted.records).all()
        assert trace.header["cluster"]["product"] == "trn1.32xlarge"
    assert "6 ranks on trn1.32xlarge (LNC 1); groups share" in call(f"replay {tmp_path}/new")
    own = tmp_path / "own.yaml"
    own.write_text("extends: trn2.48xlarge\nproduct: own\n")
    call(f"replay {folder} --cluster {own} --out {tmp_path}/own")
    assert "6 ranks on own (LNC 2); groups share" in call(f"replay {tmp_path}/own")


def test_a_run_that_was_killed(tmp_path):
    online = Online(tmp_path, 2, [[0, 1]])
    online.kernel(0)
    online.call(0, 0, "all_reduce", 4096)
    online.traces()
    output = call(f"replay {tmp_path}")
    assert (
        "rank 0 waits for all_reduce 1 of group pg0: rank 1 never called it (0 records left out)"
        in output
    )
    assert numbers(tmp_path)["unfinished"][0]["because"] == "rank 1 never called it"
    assert "whole run" in output


def test_a_recorded_cluster_of_a_file_that_has_changed(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("extends: trn2.48xlarge\nproduct: own\n")
    online = Online(tmp_path / "run", 2, [[0, 1]], load_cluster(str(own)))
    online.kernel(0)
    online.traces()
    text = refused(f"replay {tmp_path}/run")
    assert "recorded on 'own (LNC 2)', which cannot be built here: unknown product 'own'" in text
    assert "--cluster names the product or YAML file to replay on" in text
    found = numbers(tmp_path / "run", f"--cluster {own}")
    assert found["online_ns"] == found["replayed_ns"] > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--cluster trn2.48xlrge", "unknown product 'trn2.48xlrge'; did you mean 'trn2.48xlarge'?"),
        (
            "--cluster trn1.2xlarge --instances 1",
            "there is no core for rank 5, only for 0 to 1; 3 instances have one",
        ),
        ("--lnc 3", "lnc is 3, expected 1 or 2"),
        ("--what-if 0", "--what-if 0: expected a number above 0"),
        ("--json /nowhere/x.json", "/nowhere/x.json: No such file or directory"),
    ],
)
def test_wrong_options(folder, options, text):
    assert text in refused(f"replay {folder} {options}")


def test_wrong_folders(folder, tmp_path):
    assert "no such folder; expected one that NEURON_DIST_TRACE" in refused(
        f"replay {tmp_path}/nothing"
    )
    assert "that is the run's own trace, expected another folder" in refused(
        f"replay {folder} --out {folder}"
    )
    before = read(folder)[0].of(Kind.STEP)["end_ns"].tolist()
    call(f"replay {folder}")
    assert read(folder)[0].of(Kind.STEP)["end_ns"].tolist() == before
