"""The roofline gives each product its published rates, and nothing else."""

import dataclasses
import math
from fractions import Fraction
from importlib import resources

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collectives.topology import ClusterError, load_cluster, product_names
from neuron_dist.simulation.roofline import (
    COMPUTE,
    FROM_DEVICE,
    TO_DEVICE,
    Roofline,
    tensor_kind,
)

GIB, TERA = 1 << 30, 10**12

CORE_TERAFLOPS = {
    "trn1": {"bfloat16": 92, "float16": 92, "float32": 23, "float8": 92},
    "trn2": {"bfloat16": 79, "float16": 79, "float32": 20, "float8": 158},
    "trn3": {"bfloat16": 79, "float16": 79, "float32": 20, "float8": 315},
}
"""TensorE of one physical core, from the NKI architecture guides and neuron-core-v2 to v4."""

INSTANCE_HBM_BPS = {
    "trn1.2xlarge": 820 * GIB,
    "trn1.32xlarge": 13_120 * GIB,
    "trn1n.32xlarge": 13_120 * GIB,
    "trn2.3xlarge": 2.9 * TERA,
    "trn2.48xlarge": 46.4 * TERA,
    "trn2-ultraserver": 185.6 * TERA,
    "trn3-gen1": 313.6 * TERA,
    "trn3-gen2": 705.6 * TERA,
}
"""Totals as trn1-arch, trn2-arch and trn3-arch print them (a trn2.3xlarge: one chip of trainium2)."""

CHIP_TERAFLOPS = {"trn1": 190, "trn2": 667, "trn3": 671}

DMA_BPS = {"trn1": 272e9, "trn2": 368e9, "trn3": 528e9}
"""What the 16 DMA engines of a physical core move at their achievable peak."""

EVERY_CORE = [
    (product, lnc) for product in product_names() for lnc in load_cluster(product).spec["lnc"]
]


def generation(product):
    return product[:4]


@pytest.mark.parametrize("product, lnc", EVERY_CORE)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
def test_a_big_matmul_reaches_tensor_rate(product, lnc, dtype):
    roofline = Roofline.of(load_cluster(product, lnc=lnc))
    n, itemsize = 16384, getattr(torch, dtype).itemsize
    flops = 2 * n**3
    published = CORE_TERAFLOPS[generation(product)][tensor_kind(dtype)] * TERA * lnc
    busy_ns = roofline.duration_ns(flops, 3 * n * n * itemsize, dtype) - roofline.launch_ns
    assert busy_ns == pytest.approx(flops / published * 1e9, abs=1)
    assert flops / (busy_ns + roofline.launch_ns) * 1e9 > 0.99 * published


@pytest.mark.parametrize("product, lnc", EVERY_CORE)
def test_an_add_reaches_hbm_rate(product, lnc):
    cluster = load_cluster(product, lnc=lnc)
    roofline = Roofline.of(cluster)
    nbytes = 3 * (1 << 30)
    share = INSTANCE_HBM_BPS[product] / cluster.cores * cluster.parameters["hbm_efficiency"]
    busy_ns = roofline.duration_ns(0, nbytes, "bfloat16") - roofline.launch_ns
    assert busy_ns == pytest.approx(nbytes / share * 1e9, rel=1e-9, abs=1)


@pytest.mark.parametrize("product", product_names())
def test_hbm_is_not_faster_than_the_dma_engines_that_read_it(product):
    cluster = load_cluster(product)
    dma_Bps = DMA_BPS[generation(product)] * cluster.lnc
    assert Roofline.of(cluster).hbm_Bps <= dma_Bps * 1.001


@pytest.mark.parametrize("product", product_names())
def test_mfu_is_a_share_of_the_chip(product):
    cluster = load_cluster(product)
    chip = Roofline.of(cluster).peak_flops * cluster.logical_cores_per_chip
    assert chip == pytest.approx(CHIP_TERAFLOPS[generation(product)] * TERA)


@pytest.mark.parametrize("product", [p for p in product_names() if load_cluster(p).lnc == 2])
def test_two_cores_of_lnc_1_are_one_of_lnc_2(product):
    one, two = (Roofline.of(load_cluster(product, lnc=lnc)) for lnc in (1, 2))
    assert two.hbm_Bps == pytest.approx(2 * one.hbm_Bps)
    assert two.peak_flops == pytest.approx(2 * one.peak_flops)
    assert two.tensor_flops == {k: 2 * v for k, v in one.tensor_flops.items()}


def test_what_an_assumption_changes():
    usual = Roofline.of(load_cluster())
    slow = Roofline.of(
        load_cluster(
            assumptions={
                "tensor_efficiency": 0.5,
                "hbm_efficiency": 0.25,
                "launch_ns": 10,
                "dispatch_ns": 60_000,
            }
        )
    )
    assert slow.tensor_flops["bfloat16"] == usual.tensor_flops["bfloat16"] / 2
    assert slow.hbm_Bps == usual.hbm_Bps / 4
    assert slow.peak_flops == usual.peak_flops
    assert (usual.dispatch_ns, slow.dispatch_ns, slow.launch_ns) == (0, 60_000, 10)
    assert slow.duration_ns(0, 0) == 10


def test_copies_with_the_host_are_charged_by_its_bandwidth():
    roofline = Roofline.of(load_cluster())
    for moves in (TO_DEVICE, FROM_DEVICE):
        expected = roofline.launch_ns + (1 << 30) / roofline.host_Bps * 1e9
        assert roofline.duration_ns(0, 1 << 30, moves=moves) == pytest.approx(expected, abs=1)
    assert roofline.duration_ns(0, 1 << 30, moves=COMPUTE) < expected


def test_every_dtype_of_torch_has_a_rate():
    names = {
        str(v).removeprefix("torch.") for v in vars(torch).values() if isinstance(v, torch.dtype)
    }
    kinds = {name: tensor_kind(name) for name in names}
    assert set(kinds.values()) == {"bfloat16", "float16", "float32", "float8"}
    assert {n for n in names if kinds[n] == "bfloat16"} == {"bfloat16"}
    assert {n for n in names if kinds[n] == "float16"} == {"float16"}
    small = {n for n in names if n.startswith(("float8_", "float4_"))}
    assert {n for n in names if kinds[n] == "float8"} == small and len(small) >= 5
    assert {"float64", "int64", "bool", "complex64", "float32"} <= names - small
    roofline = Roofline.of(load_cluster())
    assert all(roofline.duration_ns(10**12, 0, name) > 0 for name in names)


rates = st.floats(1e9, 1e16)
rooflines = st.builds(
    lambda flops, hbm, host, launch: Roofline(
        {"bfloat16": flops, "float16": flops, "float32": flops / 4, "float8": flops * 2},
        flops,
        hbm,
        host,
        launch,
        0.0,
    ),
    rates,
    rates,
    rates,
    st.floats(0, 1e6),
)
operators = st.lists(
    st.tuples(
        st.integers(0, 1 << 60),
        st.integers(0, 1 << 48),
        st.sampled_from(["bfloat16", "float32", "float8_e5m2", "int64"]),
        st.sampled_from([COMPUTE, TO_DEVICE, FROM_DEVICE]),
    ),
    min_size=1,
)


@given(rooflines, operators)
def test_scalars_and_arrays_agree(roofline, made):
    flops, nbytes, dtypes, moves = zip(*made, strict=True)
    peaks = np.array([roofline.tensor_flops[tensor_kind(d)] for d in dtypes])
    together = roofline.durations_ns(
        np.array(flops, np.uint64), np.array(nbytes, np.uint64), peaks, np.array(moves)
    )
    assert together.dtype == np.int64
    assert together.tolist() == [roofline.duration_ns(*operator) for operator in made]


@given(rooflines, operators)
def test_a_duration_is_the_exact_one_rounded(roofline, made):
    for flops, nbytes, dtype, moves in made:
        peak = Fraction(roofline.tensor_flops[tensor_kind(dtype)])
        Bps = Fraction(roofline.hbm_Bps if moves == COMPUTE else roofline.host_Bps)
        exact = Fraction(roofline.launch_ns) + max(flops * 10**9 / peak, nbytes * 10**9 / Bps)
        slack = Fraction(1, 2) + exact / 2**50  # of doubles
        assert abs(roofline.duration_ns(flops, nbytes, dtype, moves) - exact) <= slack


@pytest.mark.parametrize("launch, expected", [(0.0, 0), (0.49, 0), (0.5, 1), (1.5, 2), (2.5, 3)])
def test_half_a_nanosecond_rounds_up(launch, expected):
    roofline = dataclasses.replace(Roofline.of(load_cluster()), launch_ns=launch)
    assert roofline.duration_ns(0, 0) == expected


@given(st.floats(0.1, 100))
def test_a_faster_core(factor):
    usual = Roofline.of(load_cluster())
    faster = usual.faster(factor)
    for flops, nbytes in ((10**13, 0), (0, 10**11)):
        busy = (r.duration_ns(flops, nbytes) - r.launch_ns for r in (usual, faster))
        assert math.isclose(next(busy), factor * next(busy), rel_tol=1e-6)
    assert faster.launch_ns == usual.launch_ns and faster.host_Bps == usual.host_Bps


FLOPS = "{bfloat16: 1.0e+12, float16: 1.0e+12, float32: 1.0e+12, float8: 1.0e+12}"


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "compute: {hbm_bps: 1.0}",
            "unknown key 'compute.hbm_bps'; did you mean 'hbm_Bps'",
        ),
        (
            "compute: {tensor_flops: {bfloat16: 1.0}}",
            "compute.tensor_flops.float16 is missing",
        ),
        (
            f"compute: {{tensor_flops: {FLOPS.replace('float8', 'fp8')}}}",
            "unknown key 'compute.tensor_flops.fp8'; expected bfloat16, float16, float32, float8",
        ),
        (
            f"compute: {{tensor_flops: {FLOPS.replace('float16: 1.0e+12', 'float16: 0', 1)}}}",
            "compute.tensor_flops.bfloat16 is 0, expected a number above 0",
        ),
        ("compute: {hbm_Bps: 0}", "compute.hbm_Bps is 0, expected a number above 0"),
        ("compute: {hbm_Bps: .nan}", "compute.hbm_Bps is nan, expected a number above 0"),
        ("compute: {hbm_Bps: 2.9e12}", "compute.hbm_Bps is '2.9e12', expected int or float"),
        ("compute: {chip_flops: -1}", "compute.chip_flops is -1, expected a number above 0"),
        ("compute: []", r"compute is \[\], expected dict"),
        (
            "assumptions: {tensor_efficiency: {value: 0, source: x}}",
            "tensor_efficiency is 0, expected a number above 0",
        ),
        (
            "assumptions: {launch_ns: {value: -1, source: x}}",
            "launch_ns is -1, expected 0 or more",
        ),
        (
            "assumptions: {dispatch_n: {value: 1, source: x}}",
            "'assumptions.dispatch_n'; did you mean 'dispatch_ns'",
        ),
        (
            "assumptions: {dispatch_ns: {value: 60us, source: x}}",
            "assumptions.dispatch_ns.value is '60us', expected int or float",
        ),
    ],
)
def test_a_wrong_yaml_is_refused_by_file_and_key(tmp_path, text, message):
    file = tmp_path / "own.yaml"
    file.write_text(f"extends: trn2.48xlarge\n{text}\n")
    with pytest.raises(ClusterError, match=rf"own\.yaml: .*{message}"):
        load_cluster(str(file))


@pytest.mark.parametrize("key", ["compute", "compute.hbm_Bps", "assumptions.host_Bps"])
def test_a_key_that_is_missing(tmp_path, key):
    text = (resources.files("collectives.topology") / "products" / "trn2.48xlarge.yaml").read_text()
    spec = yaml.safe_load(text)
    *section, last = key.split(".")
    del (spec[section[0]] if section else spec)[last]
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(spec))
    with pytest.raises(ClusterError, match=rf"own\.yaml: {key} is missing"):
        load_cluster(str(file))


@pytest.mark.parametrize(
    "assumptions, message",
    [
        ({"hbm_efficiency": 0}, "hbm_efficiency is 0, expected a number above 0"),
        ({"host_Bps": math.inf}, "host_Bps is inf, expected a number above 0"),
        ({"dispatch_ns": -60_000}, "dispatch_ns is -60000, expected 0 or more"),
        ({"launch_ns": "1300"}, "launch_ns is '1300', expected int or float"),
    ],
)
def test_a_wrong_assumption_is_refused(assumptions, message):
    with pytest.raises(ClusterError, match=f"trn2.48xlarge: {message}"):
        load_cluster(assumptions=assumptions)
