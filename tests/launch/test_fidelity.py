"""neuron-dist fidelity: the rules of a release on a product."""

import json

import pytest

from neuron_dist.fidelity import rules
from tests.launch.run import call, refused


def test_the_table():
    lines = call("fidelity --release 2.14.3").splitlines()
    assert lines[0].startswith("TorchNeuron 2.14.3 on trn2.48xlarge (LNC 2): ")
    assert len(lines) - 2 == int(lines[0].split(": ")[1].split()[0])
    table = {line.split()[0]: " ".join(line.split()) for line in lines[2:]}
    assert "refuses all_to_all with uneven splits" in table["uneven-all-to-all"]
    assert "may refuse send, recv" in table["send-recv"]
    assert "trn2-64x2" not in table and "trn1-4-ranks" not in table


def test_products_and_cores():
    assert "trn2-64x2" in call("fidelity --lnc 1")
    trn1 = call("fidelity --cluster trn1.32xlarge")
    assert "trn1-4-ranks" in trn1 and "trn2-" not in trn1


def test_the_environment(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_FIDELITY_RELEASE", "2.13.3")
    monkeypatch.setenv("NEURON_DIST_CLUSTER", "trn3-gen1")
    assert call("fidelity").startswith("TorchNeuron 2.13.3 on trn3-gen1 (LNC 2): ")


def test_json():
    found = json.loads(call("fidelity --json"))
    by_id = {rule["id"]: rule for rule in found}
    known = {rule.id: rule for rule in rules()}
    assert len(by_id) == len(found) and set(by_id) <= set(known)
    dtype = by_id["dtype"]
    assert dtype["ops"] == list(known["dtype"].ops)
    assert dtype["evidence"][0]["sure"] == "pre-release"
    assert dtype["when"][0].startswith("dtype complex128 or ")


def test_one_rule():
    text = call("fidelity trn2-8x8")
    assert (
        "effect:       may refuse\n" in text
        and "why:          NeuronX Distributed does not" in text
    )
    (only,) = json.loads(call("fidelity trn2-8x8 --json"))
    assert only["id"] == "trn2-8x8"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "fidelity --release 2.14",
            "--release is '2.14', expected 2.13.3 or 2.14.3; did you mean '2.14.3'?",
        ),
        ("fidelity dtypes", "no rule 'dtypes' for TorchNeuron 2."),
        ("fidelity dtypes", "did you mean 'dtype'?"),
        ("fidelity trn2-64x2", "did you mean 'trn2-"),
        ("fidelity --cluster trn2.48xlarg", "did you mean 'trn2.48xlarge'"),
    ],
)
def test_errors(line, text):
    assert text in refused(line)
