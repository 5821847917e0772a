"""Published training throughput lies below the model's bound, and docs/simulation.md shows today's figures."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from collectives.topology import load_cluster
from neuron_dist.simulation.estimate import Charge, estimate
from neuron_dist.simulation.roofline import Roofline

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"


@pytest.fixture(scope="module")
def benchmark():
    file = ROOT / "benchmarks" / "published_training.py"
    spec = importlib.util.spec_from_file_location("published_training", file)
    module = sys.modules["published_training"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(benchmark):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NEURON_DIST_ALGORITHM", raising=False)
        return benchmark.Everything.now()


@pytest.mark.parametrize(
    "model, parameters",
    [
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.1-70B", 70_553_706_496),
        ("Llama-2-13B", 13_015_864_320 + 2 * 16 * 5120),  # of 32,016 tokens
        ("Llama-2-70B", 68_976_648_192),
    ],
)
def test_models_are_as_large_as_published(benchmark, model, parameters):
    assert benchmark.parameters(benchmark.shape_of(model)) == parameters


@pytest.mark.parametrize(
    "model, parameters", [("GPT-3 23B", 23e9), ("GPT-3 175B", 175e9), ("BERT-Large", 335e6)]
)
def test_models_are_about_as_large_as_their_names(benchmark, model, parameters):
    assert benchmark.parameters(benchmark.shape_of(model)) == pytest.approx(parameters, rel=0.005)


def test_rows_fill_their_clusters(benchmark):
    for section, product in (("published", "trn1.32xlarge"), ("predicted", "trn2.48xlarge")):
        for row in benchmark.rows(section):
            cores = load_cluster(product, instances=row.instances).cores
            assert row.tp * row.dp * row.pp == cores, row
            job = benchmark.job_of(row)
            assert job.micro_batches * row.dp * row.micro_batch == row.global_batch, row


def test_no_published_row_is_above_its_bound(found):
    assert len(found.published) == 22
    for result in found.published:
        ours = result.seq_per_s
        assert ours["eager"] < ours["matmul"] < ours["tensor"], result
        assert 0.3 < result.share_of_bound < 0.75, result
        assert 0.1 < result.mfu < 0.4, result
        assert 0.6 < result.row.seq_per_s / ours["eager"] < 1.8, result


def test_what_the_page_says_of_the_rows(benchmark, found):
    """The sentences below the table of docs/simulation.md."""
    trn1 = [r for r in found.published if r.product == "trn1.32xlarge"]
    errors = [r.seq_per_s["eager"] / r.row.seq_per_s - 1 for r in trn1]
    assert len(errors) == 11 and sum(abs(e) <= 0.2 for e in errors) == 7
    slow = [r.row for r, e in zip(trn1, errors, strict=True) if e < -0.2]
    assert all(r.precision == "fp32" or r.model.startswith("Llama-2") for r in slow)
    assert [round(e, 2) for r, e in zip(trn1, errors, strict=True) if "3.1" in r.row.model] == [
        0.18,
        0.09,
    ]
    assert round(1 / (1 + min(errors)), 1) == 1.7
    needed = [r.tensor_efficiency for r in found.published if r.row.precision != "fp32"]
    assert (round(min(needed), 2), round(max(needed), 2)) == (0.32, 0.57)
    assert trn1[0].dominant == "tensor parallel"
    faster = []
    for result in trn1:
        row, ideal = result.row, {"hbm_efficiency": 1.0}
        cluster = load_cluster("trn1.32xlarge", instances=row.instances, assumptions=ideal)
        step = estimate(benchmark.job_of(row), cluster, Charge.EAGER)
        faster.append(row.global_batch / step.total_ns * 1e9 / result.seq_per_s["eager"])
    assert (round(min(faster), 2), round(max(faster), 2)) == (1.12, 1.35)


def test_the_efficiency_reconciles(benchmark, found):
    for result in found.published[::5]:
        cluster = load_cluster(result.product, instances=result.row.instances)
        job = benchmark.job_of(result.row)
        rate = benchmark.rate_at(job, cluster, result.tensor_efficiency)
        assert rate == pytest.approx(result.row.seq_per_s, rel=1e-6)
        assert benchmark.reconciling(job, cluster, 10 * result.seq_per_s["tensor"]) is None


def test_the_bound_is_not_faster_than_its_flops(benchmark, found):
    for result in found.published:
        cluster = load_cluster(result.product, instances=result.row.instances)
        kind = "float32" if result.row.precision == "fp32" else "bfloat16"
        peak = Roofline.of(cluster).tensor_flops[kind] * cluster.cores
        tokens = result.tokens_per_s[Charge.TENSOR.value]
        shape = benchmark.shape_of(result.row.model)
        looked_up = (shape.vocab * (not shape.tied) + shape.positions) * shape.hidden
        matrices = benchmark.parameters(shape) - looked_up
        assert 6 * 0.99 * matrices * tokens < peak, result


def test_big_operators_reach_their_engine(found):
    for result in found.operators:
        cluster = load_cluster(result.product)
        reachable = cluster.parameters["hbm_efficiency"]
        assert result.share_of_tensor <= 1 and result.share_of_hbm <= reachable * (1 + 1e-9)
        if result.tokens == 8192:
            if result.flops:
                assert result.share_of_tensor > 0.98, result
            else:
                assert result.share_of_hbm > 0.97 * reachable, result


def test_the_page_has_todays_tables(benchmark, found):
    page = PAGE.read_text()
    for name, table in found.tables.items():
        shown = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.S)
        assert shown, f"docs/simulation.md has no table {name}"
        assert shown[1].strip() == benchmark.markdown(table), (
            f"{name}: run python benchmarks/published_training.py --docs and paste its tables"
        )


def test_the_pages_cluster_loads(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    file = tmp_path / "eager.yaml"
    file.write_text(text)
    cluster = load_cluster(str(file))
    roofline, usual = Roofline.of(cluster), Roofline.of(load_cluster("trn2.48xlarge"))
    assert roofline.dispatch_ns == 60_000 and usual.dispatch_ns == 0
    assert roofline.tensor_flops["bfloat16"] == usual.tensor_flops["bfloat16"] / 2
    assert roofline.hbm_Bps == usual.hbm_Bps


def test_the_pages_assumptions_are_the_products():
    page = PAGE.read_text()
    trn1, trn2, trn3 = (
        load_cluster(p).parameters for p in ("trn1.32xlarge", "trn2.48xlarge", "trn3-gen1")
    )
    for parameters in (trn1, trn2, trn3):
        assert f"| `launch_ns` | {parameters['launch_ns']:,} |" in page
        assert f"| `dispatch_ns` | {parameters['dispatch_ns']} |" in page
        assert f"| `tensor_efficiency` | {parameters['tensor_efficiency']} |" in page
        assert f"| `host_Bps` | {parameters['host_Bps'] / 1e9:.0f} GB/s |" in page
    hbm = [p["hbm_efficiency"] for p in (trn2, trn1, trn3)]
    assert "| {} on Trn2, {} on Trn1, {} on Trn3 |".format(*hbm) in page
