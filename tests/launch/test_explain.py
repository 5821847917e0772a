"""neuron-dist explain: what it says is what the plan says."""

import pytest

from collectives import load_cluster, plan
from collectives.spelling import ranges
from launch.options import Ranks
from tests.launch.run import call, refused


def section(output, name):
    """Lines of a section, without its title and the header of its table."""
    return output.split(f"\n{name}", 1)[1].split("\n\n")[0].splitlines()[2:]


def test_all_reduce():
    output = call("explain all_reduce --bytes 4M --ranks 0-15")
    p = plan("all_reduce", 4 << 20, range(16), load_cluster())
    assert output.startswith("all_reduce of 4194304 bytes on 16 ranks of trn2.48xlarge (LNC 2); times are simulated")
    assert f"algorithm  {p.algorithm}: {p.choice.reason}" in output
    assert f"time       {p.time_ns / 1e3:.2f} us" in output
    steps = [line.split() for line in section(output, "Steps")]
    assert len(steps) == p.steps
    assert float(steps[-1][-1]) == pytest.approx(p.time_ns / 1e3, abs=0.005)
    assert sum(int(s[3]) for s in steps) == p.price.sent_bytes.sum()
    prices = {c.algorithm: c.time_ns for c in p.candidates() if c.time_ns}
    shown = {line.split()[0]: line.split()[1] for line in section(output, "Rejected")}
    assert {name: f"{ns / 1e3:.2f}" for name, ns in prices.items()}.items() <= shown.items()
    assert section(output, "Busiest links")[0].startswith(p.price.busiest_link)
    assert "===[ 0]===[ 1]===[ 2]===[ 3]===" in output


def test_steps_that_are_alike_share_a_line_unless_asked():
    short = call("explain all_gather --bytes 64M --ranks 0-63")
    steps = plan("all_gather", 64 << 20, range(64), load_cluster()).steps
    assert [line.split()[0] for line in section(short, "Steps")] == ["1", f"2-{steps - 1}", str(steps)]
    assert len(section(call("explain all_gather --bytes 64M --ranks 0-63 --all-steps"), "Steps")) == steps


def test_ranks_decide_how_many_instances():
    output = call("explain all_reduce --bytes 64M --ranks 0-127")
    assert "2 x trn2.48xlarge" in output
    assert "EFA 64 of 64" in " ".join(output.split())
    assert "Links in use of instance 1" in output


@pytest.mark.parametrize("op", ["reduce", "broadcast", "gather", "scatter"])
def test_roots(op):
    assert "us" in call(f"explain {op} --bytes 1K --ranks 4-7 --root 6")


@pytest.mark.parametrize("cluster", ["trn1.32xlarge", "trn2-ultraserver", "trn3-gen1", "trn2.3xlarge"])
def test_other_clusters(cluster):
    assert "Links in use" in call(f"explain all_to_all --bytes 1M --ranks 0-3 --cluster {cluster}")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("all_redce --bytes 4M --ranks 0-15", "did you mean 'all_reduce'?"),
        ("all_reduce --bytes 4M --ranks 15-0", "'15-0' is not ranks, expected like 0-15"),
        ("all_reduce --bytes 4M --ranks 0-3,3", "rank 3 occurs twice"),
        ("all_reduce --bytes 4M --ranks 0-3 --algorithm kangring", "did you mean 'kangaring'?"),
        ("all_reduce --bytes 4M --ranks 0-3 --root 1", "--root is for broadcast, gather, reduce, scatter, not for all_reduce"),
        ("broadcast --bytes 4M --ranks 0-3 --root 4", "--root 4 is not one of --ranks 0-3"),
        ("all_reduce --bytes 4M --ranks 0-64 --instances 1", "there is no core for rank 64"),
    ],
)
def test_wrong_arguments(line, text):
    assert text in refused(f"explain {line}")


@pytest.mark.parametrize("ranks", [[0], [0, 1], [0, 1, 2, 3], [0, 4, 8], [0, 4], [3, 2, 1], [0, 1, 2, 8, 12, 16, 5]])
def test_ranks_are_written_as_they_are_read(ranks):
    assert Ranks().convert(ranges(ranks), None, None) == tuple(ranks)
