"""neuron-dist nccom-test: arguments, columns, numbers and refusals."""

import json
import time

import pytest

from collectives import load_cluster, plan
from collectives.bandwidth import FACTORS
from launch.sweep import OPS, Setting, point, sizes
from tests.launch.run import call, refused

ALL_REDUCE = next(op for op in OPS if op.name == "all_reduce")


def rows(output):
    """The lines of the table by column."""
    lines = [line for line in output.splitlines() if not line.startswith("#")][:-1]
    header = lines[0].split()
    return [dict(zip(header, line.split(), strict=True)) for line in lines[1:]]


def results(line, tmp_path):
    path = tmp_path / "results.json"
    call(f"nccom-test {line} --report-to-json-file {path}")
    return json.loads(path.read_text())["results"]


def test_the_sweep_of_64_ranks_is_quick_and_is_the_plans():
    start = time.monotonic()
    output = call("nccom-test -r 64 -b 1K -e 512M -f 8 all_reduce")
    assert time.monotonic() - start < 5
    table = rows(output)
    assert [int(r["size(B)"]) for r in table] == [1024 * 8**i for i in range(7)]
    for row in table:
        size = int(row["size(B)"])
        p = plan("all_reduce", size, range(64), load_cluster())
        assert row["algorithm"] == p.algorithm
        assert float(row["time:avg(us)"]) == pytest.approx(p.time_ns / 1e3, abs=0.005)
        assert float(row["algbw(GB/s)"]) == pytest.approx(size / p.time_ns, abs=0.005)
        assert float(row["busbw(GB/s)"]) == pytest.approx(size / p.time_ns * 2 * 63 / 64, abs=0.005)
    assert "simulated" in output.splitlines()[0]
    last = output.splitlines()[-1]
    assert last.startswith("Avg bus bandwidth:") and last.endswith("GB/s")
    mean = sum(float(r["busbw(GB/s)"]) for r in table) / len(table)
    assert float(last.split()[-1].removesuffix("GB/s")) == pytest.approx(mean, abs=0.01)


def test_json_keys(tmp_path):
    (row,) = results("-r 4 -d fp32 -b 1K -e 1K allg", tmp_path)
    theirs = {"size(B)", "count(elems)", "type", "algbw(GB/s)", "busbw(GB/s)", "time:avg(us)"}
    assert set(row) == theirs | {"algorithm"}
    assert (row["size(B)"], row["count(elems)"], row["type"]) == (1024, 256, "fp32")


def test_statistics_and_sizes_of_a_rank(tmp_path):
    line = "-r 32 -b 1kb -e 1mb -f 8 -d fp32 --stats avg p50 p99 --show-input-output-size"
    table = results(f"{line} allg", tmp_path)
    assert [(r["total_input_size(B)"], r["total_output_size(B)"]) for r in table][:2] == [(32, 1024), (256, 8192)]
    assert table[0]["time:avg(us)"] == table[0]["time:p50(us)"] == table[0]["time:p99(us)"]
    assert results(f"allg {line}", tmp_path) == table


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_and_its_short_form(op, tmp_path):
    pairs = ""
    if op.name == "permute":
        (tmp_path / "pairs.json").write_text('{"src_target_pairs": [[[0, 1], [1, 0], [2, 3], [3, 2], [4, 4]]]}')
        pairs = f"--custom-src-target-pairs {tmp_path}/pairs.json"
    long = results(f"-r 8 -b 8K -e 64K -f 2 {pairs} {op.name}", tmp_path)
    assert len(long) == 4
    for row in long:
        factor = {"2(r-1)/r": 14 / 8, "(r-1)/r": 7 / 8, "1": 1}[FACTORS[op.planned_as]]
        assert row["busbw(GB/s)"] == pytest.approx(row["algbw(GB/s)"] * factor)
    if op.short:
        assert results(f"-r 8 -b 8K -e 64K -f 2 {op.short}", tmp_path) == long


def test_default_is_one_size_of_32_mib(tmp_path):
    (row,) = results("-r 2 allr", tmp_path)
    assert (row["size(B)"], row["type"]) == (32 << 20, "uint8")


def test_sizes_step_and_round_up_to_whole_elements_of_each_rank():
    setting = Setting(ALL_REDUCE, "fp32", load_cluster(), (tuple(range(8)),))
    assert sizes(setting, 8, 16, 4, None) == [8, 12, 16]
    assert sizes(setting, 1, 10, None, 2) == [4, 8]
    gather = Setting(OPS[1], "fp32", load_cluster(), (tuple(range(8)),))
    assert sizes(gather, 1, 100, None, 3) == [32, 96]
    assert len(sizes(setting, 1000, 2000, None, None)) == 11


def test_nodes_share_the_ranks_equally(tmp_path):
    (row,) = results("-r 64 -N 2 -d fp32 -b 1M -e 1M allr", tmp_path)
    assert row["algorithm"].startswith("hier:")
    ranks = [*range(32), *range(64, 96)]
    p = plan("all_reduce", 1 << 20, ranks, load_cluster(instances=2))
    assert row["time:avg(us)"] == pytest.approx(p.time_ns / 1e3)


def test_groups_at_once_share_their_links(tmp_path):
    def time_of(*groups):
        setting = Setting(ALL_REDUCE, "fp32", load_cluster(), groups)
        return point(setting, 64 << 20).time_ns

    row_0, row_1 = tuple(range(16)), tuple(range(16, 32))
    assert time_of(row_0, row_1) == pytest.approx(time_of(row_0))  # other links
    first, second = tuple(range(0, 64, 4)), tuple(range(1, 64, 4))
    assert time_of(first, second) > 1.8 * time_of(first)  # the same links
    (tmp_path / "groups.json").write_text(json.dumps({"replica_groups": [[first, second]]}))
    (row,) = results(f"-r 64 -d fp32 -b 64M -e 64M --custom-replica-groups {tmp_path}/groups.json allr", tmp_path)
    assert row["time:avg(us)"] == pytest.approx(time_of(first, second) / 1e3)
    (row,) = results("-r 64 --data-parallel-dimension 16 -d fp32 -b 64M -e 64M allr", tmp_path)
    assert row["time:avg(us)"] > 1.8 * time_of(first, second) / 1e3


def test_check_with_the_interpreter_where_ranks_are_too_many():
    output = call("nccom-test -r 64 -b 1K -e 512M -f 512 -d fp32 --check allr")
    assert "# check: passed, mesh, kangaring interpreted hop by hop in fp32, random data (too many" in output
    assert "all_ones data" in call("nccom-test -r 64 -d bf16 -c all_ones redsct")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"])
def test_wall_and_check_on_real_ranks(op):
    output = call(f"nccom-test -r 4 -b 1K -e 64K -f 64 -d bf16 -n 3 -w 1 --stats avg p50 --check --wall {op}")
    assert "# check: passed, 2 size(s) on 4 real ranks over backend neuron, random data" in output
    for row in rows(output):
        assert float(row["wall:avg(us)"]) > 0 and float(row["wall:p50(us)"]) > 0


def test_check_in_groups_of_real_ranks(tmp_path):
    (tmp_path / "groups.json").write_text('{"replica_groups": [[[0, 3], [2, 1]]]}')
    output = call(f"nccom-test -r 4 -b 1K -e 1K --check --custom-replica-groups {tmp_path}/groups.json allr")
    assert "on 4 real ranks" in output


def test_wrong_data_are_reported(monkeypatch):
    monkeypatch.setattr("launch.real._wrong_ranks", lambda *_: [3])
    output = call("nccom-test -r 64 -b 1K -e 1K --check allr", code=1)
    assert "# failed: mesh all_reduce on 64 ranks: wrong data on rank(s) [3]" in output


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-r 64 allrr", "'allrr' is none of all_reduce, allr,"),
        ("-r 64 allrr", "did you mean 'allr'?"),
        ("-r 64 allr -d fp33", "did you mean 'fp32'?"),
        ("-r 64 allr -b 3X", "'3X' is not a size, expected bytes like"),
        ("-r 64 allr -b 2M -e 1M", "--maxbytes is 1048576, expected at least --minbytes, 2097152"),
        ("-r 65 allr", "-N 2 has room"),
        ("-r 65 -N 2 allr", "-r 65 does not divide equally among -N 2 nodes"),
        ("-r 0 allr", "0 is not in the range x>=1"),
        ("allr", "Missing option '-r'"),
        ("-r 64 allr --minbite 4", "--minbytes"),
        ("-r 64 allr --stats median", "--stats expects avg or percentiles like p50 p99, got 'median'"),
        ("-r 64 allr --hosts a b", "--hosts of nccom-test has no meaning here"),
        ("-r 64 --wall allr", "-r 64 is more than can be run here"),
        ("-r 4 permute", "permute needs --custom-src-target-pairs"),
        ("-r 4 --data-parallel-dimension 3 allr", "expected a divisor of -r 4"),
        ("-r 4 --custom-replica-groups nowhere.json allr", "nowhere.json: No such file"),
    ],
)
def test_wrong_arguments(line, text):
    assert text in refused(f"nccom-test {line}")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"replica_group": [[[0, 1]]]}', "no key 'replica_groups'"),
        ('{"replica_groups": [[0, 1]]}', "holds 0, expected a list of ranks"),
        ('{"replica_groups": [[[0, 4]]]}', "rank 4 in [0, 4], expected 0 to 3 (-r 4)"),
        ('{"replica_groups": [[[0, 1], [1, 2]]]}', "rank 1 occurs twice"),
        ("[", "not JSON"),
    ],
)
def test_wrong_groups(content, text, tmp_path):
    (tmp_path / "groups.json").write_text(content)
    assert text in refused(f"nccom-test -r 4 --custom-replica-groups {tmp_path}/groups.json allr")


def test_a_rank_that_fails_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("launch.real.on_a_rank.work", fails)
    output = call("nccom-test -r 2 -b 1K -e 1K --wall allr", code=1)
    assert "# failed: rank" in output and "RuntimeError: no" in output


def fails(job):
    raise RuntimeError("no")


def test_too_much_memory_is_refused_or_interpreted(monkeypatch):
    monkeypatch.setattr("launch.real._available", lambda: 1 << 20)
    assert "the ranks would need" in refused("nccom-test -r 4 --wall allr")
    assert "interpreted hop by hop" in call("nccom-test -r 4 --check allr")


def test_ranks_see_wrong_data(monkeypatch):
    monkeypatch.setattr("launch.real.on_a_rank.work", expects_too_much)
    output = call("nccom-test -r 2 -b 1K -e 1K -d int32 --check all_ones allr", code=1)
    assert "# failed: all_reduce of 1024 bytes: rank 1, element 0: 2, expected 3" in output


def expects_too_much(job):
    from launch import ranks

    honest = ranks._Run.expected
    ranks._Run.expected = lambda self: honest(self) + 1
    return ranks.work(job)


def test_the_interpreter_sees_wrong_data(monkeypatch):
    from collectives.interpret import interpret

    def wrong(*args):
        run = interpret(*args)
        run.outputs[5][0] += 1
        return run

    monkeypatch.setattr("launch.real.interpret", wrong)
    assert "wrong data on rank(s) [5]" in call("nccom-test -r 64 -d fp32 -b 1K -e 1K --check allg", code=1)
