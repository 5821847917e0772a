"""Operators that TorchNeuron computes otherwise: what is seen of them, where and how often it is said."""

import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

from neuron_dist import _C
from neuron_dist.fidelity.call import plain_name
from neuron_dist.fidelity.errors import FidelityError, FidelityWarning

D = "neuron"


def run(source, **env):
    """The reports of a program, whose own lines begin at 1: (line, rule) each."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=280,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **env},
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "FidelityWarning" in line]
    return [(int(line.split(":")[1]), line.split("[rule ")[1].split(";")[0]) for line in lines]


PROGRAM = """\
import torch
x = torch.randn(4, 4, device="neuron")
x @ x; x.long() + 1; torch.ones((), dtype=torch.float64, device="neuron") * x
torch.empty(1, 2, 3, 3, device="neuron").contiguous()
y = x.double()
for _ in range(3):
    y @ y
y @ y
torch.linalg.svd(x)
torch.full((2,), 2**30, device="neuron").cumsum(0) * 2**20
torch.empty(1, 2, 3, 3, device="neuron", memory_format=torch.channels_last)
q = y[None, None]
torch.nn.functional.scaled_dot_product_attention(q, q, q)
x.nonzero()
"""


def test_each_operator_is_reported_once_at_its_first_line():
    assert run(PROGRAM) == [
        (7, "float64"),
        (9, "linear-algebra-on-the-cpu"),
        (10, "int64-overflow"),
        (11, "channels-last"),
        (13, "float64-attention"),
        (14, "data-dependent-shapes"),
    ]


def test_off():
    assert run(PROGRAM, NEURON_DIST_FIDELITY="off") == []


def test_strict_raises_what_is_refused_each_time_and_narrowing_warns():
    source = """\
        import torch
        from neuron_dist.fidelity import FidelityError
        x = torch.ones(1, 2, 4, 4, dtype=torch.float64, device="neuron")
        x @ x
        for _ in range(2):
            for refused in (
                lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x),
                lambda: torch.empty_like(x, memory_format=torch.channels_last),
            ):
                try:
                    refused()
                except FidelityError as error:
                    assert "To go on in spite of it" in str(error)
                else:
                    raise AssertionError
        """
    assert {rule for _, rule in run(source, NEURON_DIST_FIDELITY="strict")} == {"float64"}


@pytest.mark.parametrize(
    ("operator", "plain"),
    [
        ("aten::_linalg_svd", "svd"),
        ("aten::linalg_cholesky_ex", "cholesky"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention"),
        ("aten::mm", "mm"),
    ],
)
def test_plain_names(operator, plain):
    assert plain_name(operator) == plain


def test_what_the_core_sees():
    seen = []
    _C._watch_operators(lambda *what: seen.append(what) or True)
    try:
        big = torch.full(
            (3,), 2**40, device=D
        )  # these operators have not run before in this process
        torch.special.i0e(torch.ones(2, dtype=torch.float64, device=D))
        torch.special.i0e(torch.ones(2, dtype=torch.float64, device=D))
        torch.lcm(big, big)
    finally:
        _C._watch_operators(None)
    assert sum("i0e" in operator for operator, _, _ in seen) == 1
    assert ("aten::lcm", "int64", 4) in seen


def test_an_error_of_the_watcher_is_the_operators():
    def refuse(operator, dtype, seen):
        raise FidelityError(operator)

    _C._watch_operators(refuse)
    try:
        with warnings.catch_warnings(), pytest.raises(FidelityError, match="special_i1e"):
            warnings.simplefilter("ignore", FidelityWarning)
            torch.special.i1e(torch.ones(2, dtype=torch.float64, device=D))
    finally:
        _C._watch_operators(None)


def test_printing_a_tensor_is_no_program():
    """Printing picks the finite values and compares them in float64; the same operators of a program are told."""
    source = """\
    import torch
    x = torch.randn(3, device="neuron")
    print(x, x > 0)
    torch.masked_select(x, x > 0)
    """
    assert run(source) == [(4, "data-dependent-shapes")]
