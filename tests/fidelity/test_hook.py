"""What the native core calls: clean keys, reports, strict mode, several ranks, and what is loaded when."""

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from collectives.topology import load_cluster
from neuron_dist.fidelity import FidelityError, FidelityWarning
from neuron_dist.fidelity.call import Call
from neuron_dist.fidelity.hook import CallFlag, FidelityHook, fidelity_hook
from neuron_dist.fidelity.profile import Profile
from neuron_dist.fidelity.reporting import Reporter
from neuron_dist.testing import run_ranks

ROOT = Path(__file__).parents[2]
FOUR = (0, 1, 2, 3)


def hook(mode="warn", world_size=4, cluster=None):
    profile = Profile(mode, "2.13.3", cluster or load_cluster())
    return FidelityHook(lambda: profile, world_size, lambda key: True, Reporter())


def test_clean():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hook()("all_reduce", "SUM", "float32", 4, 0, FOUR) is True
        assert hook("strict")("barrier", "", "", 0, 0, FOUR) is True


def test_warns_once_a_site_and_asks_again():
    check = hook()
    with pytest.warns(
        FidelityWarning, match=r"refuses all_reduce with ReduceOp.BAND .*\[rule reduce-op;"
    ) as found:
        for _ in range(3):
            assert check("all_reduce", "BAND", "int32", 4, 0, FOUR) is False
    assert len(found) == 1
    with pytest.warns(FidelityWarning):
        check("all_reduce", "BAND", "int32", 4, 0, FOUR)
    assert [c.count for c in check._reporter.counts()] == [3, 1]


def test_strict_raises_each_time_and_says_how_to_go_on():
    check = hook("strict")
    for _ in range(2):
        with pytest.raises(FidelityError) as error:
            check("all_to_all", "", "float64", 4, CallFlag.UNEVEN, FOUR)
    first, second = str(error.value).split("\n")
    assert first.startswith(
        "fidelity: TorchNeuron 2.13.3 on trn2.48xlarge refuses all_to_all with uneven splits ("
    )
    assert second.startswith(
        "fidelity: TorchNeuron 2.13.3 on trn2.48xlarge refuses all_to_all of float64"
    )
    assert second.endswith(
        "docs/fidelity.md#dtype] To go on in spite of it: NEURON_DIST_FIDELITY=warn."
    )
    assert isinstance(error.value, RuntimeError)
    assert [(c.rule, c.count) for c in check._reporter.counts()] == [
        ("uneven-all-to-all", 2),
        ("dtype", 2),
    ]


def test_strict_only_warns_of_what_may_be_refused():
    check = hook("strict")
    with pytest.warns(FidelityWarning, match="may refuse send"):
        assert check("send", "", "float32", 4, 0, FOUR) is False
    with (
        pytest.warns(FidelityWarning, match="may refuse recv"),
        pytest.raises(FidelityError, match="CPU tensor"),
    ):
        check("recv", "", "float32", 4, CallFlag.CPU, FOUR)


def test_the_profile_is_made_at_the_first_check_once():
    made = []

    def profile():
        made.append(Profile("warn", "2.13.3", load_cluster()))
        return made[0]

    check = FidelityHook(profile, 4, lambda key: True, Reporter())
    assert not made
    check("all_reduce", "SUM", "float32", 4, 0, FOUR)
    check("all_gather", "", "float32", 4, 0, (0, 1))
    assert len(made) == 1


FLAGS = {
    CallFlag.CPU: ("cpu", True),
    CallFlag.UNEVEN: ("even", False),
    CallFlag.COALESCED: ("coalesced", True),
    CallFlag.MANAGED: ("managed", True),
    CallFlag.EXPLICIT_SPLITS: ("explicit_splits", True),
    CallFlag.TENSOR_LIST: ("tensor_list", True),
    CallFlag.EMPTY: ("empty", True),
    CallFlag.EMPTY_DIM0: ("empty_dim0", True),
    CallFlag.RESHAPED: ("reshaped", True),
}


class Recorded(Profile):
    calls: list[Call]

    def violations(self, call):
        self.calls.append(call)
        return ()


def test_flags_are_the_fields_of_a_call():
    assert list(FLAGS) == list(CallFlag)
    switches = {f.name for f in dataclasses.fields(Call) if isinstance(f.default, bool)}
    of_operators_and_graphs = {"float64", "overflows", "channels_last", "dynamic"}
    assert switches - of_operators_and_graphs == {name for name, _ in FLAGS.values()}
    profile = Recorded("warn", "2.13.3", load_cluster())
    profile.calls = []
    check = FidelityHook(lambda: profile, 8, lambda key: True, Reporter())
    for flag, (name, value) in FLAGS.items():
        check("all_reduce", "SUM", "float32", 6, int(flag), FOUR)
        plain = Call("all_reduce", FOUR, 8, "SUM", "float32", 6)
        assert profile.calls.pop() == dataclasses.replace(plain, **{name: value})
    with pytest.raises(ValueError, match="flags is 0x4, expected bits of 0x3fb"):
        check("all_reduce", "SUM", "float32", 6, 4, FOUR)


def test_verdicts_are_kept():
    profile = Recorded("warn", "2.13.3", load_cluster())
    profile.calls = []
    check = FidelityHook(lambda: profile, 4, lambda key: True, Reporter())
    for numel in (1, 2, 3):
        check("all_reduce", "SUM", "float32", numel, 0, FOUR)
    assert len(profile.calls) == 1
    check("all_reduce", "SUM", "float32", 1, 0, (0, 1))
    assert len(profile.calls) == 2


def test_the_environment(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_FIDELITY", "off")
    assert fidelity_hook(4) is None
    monkeypatch.setenv("NEURON_DIST_FIDELITY", "strict")
    monkeypatch.setenv("NEURON_DIST_FIDELITY_RELEASE", "2.14.3")
    monkeypatch.setenv("NEURON_DIST_CLUSTER", "trn1.32xlarge")
    with pytest.raises(
        FidelityError,
        match=r"TorchNeuron 2\.14\.3 on trn1\.32xlarge refuses all_reduce in the group",
    ):
        fidelity_hook(64)("all_reduce", "SUM", "float32", 4, 0, (0, 1, 2, 9))
    assert fidelity_hook(64)(
        "all_reduce", "SUM", "float32", 4, 0, tuple(range(64))
    )  # of two instances


def report_on_every_rank():
    check = fidelity_hook(dist.get_world_size())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            check("all_reduce", "BOR", "int32", 4, 0, FOUR)
        check("broadcast", "", "float64", 4, 0, FOUR)
    x = torch.ones(2, device="neuron")
    dist.all_reduce(x)  # all have come here
    return [str(w.message) for w in found], x.cpu().tolist()


def test_one_rank_prints():
    results = run_ranks(4, report_on_every_rank, env={"NEURON_DIST_FIDELITY": "warn"})
    assert [x for _, x in results] == [[4.0, 4.0]] * 4
    printed = sorted(message.split("[rule ")[1] for messages, _ in results for message in messages)
    assert [text.split(";")[0] for text in printed] == ["dtype", "reduce-op"]


def refused_on_every_rank():
    check = fidelity_hook(dist.get_world_size())
    with pytest.raises(FidelityError) as error:
        check("all_reduce", "BOR", "int32", 4, 0, FOUR)
    x = torch.ones(2, device="neuron")
    dist.all_reduce(x)  # nothing has reached another rank, so the group is as it was
    return str(error.value), x.cpu().tolist()


def test_strict_raises_the_same_on_every_rank():
    results = run_ranks(4, refused_on_every_rank, env={"NEURON_DIST_FIDELITY": "strict"})
    assert len({message for message, _ in results}) == 1
    assert [x for _, x in results] == [[4.0, 4.0]] * 4


PROGRAM = """
import os, runpy, sys, torch
assert not [m for m in sys.modules if m.startswith("neuron_dist.fidelity")]

def unread():
    return "yaml" not in sys.modules and "neuron_dist.fidelity.loading" not in sys.modules

from neuron_dist.fidelity import FidelityError
from neuron_dist.fidelity.hook import fidelity_hook
os.environ["NEURON_DIST_FIDELITY"] = "off"
assert fidelity_hook(4) is None and unread()
del os.environ["NEURON_DIST_FIDELITY"]
hook = fidelity_hook(4)
assert unread()
assert hook("all_reduce", "SUM", "float32", 4, 0, (0, 1, 2, 3))
assert not unread()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_what_is_loaded_when_and_what_is_printed(tmp_path):
    """Importing torch loads nothing of it; PyYAML and the rules come with the first check."""
    program = tmp_path / "report.py"
    program.write_text(
        "from neuron_dist.fidelity.hook import fidelity_hook\n"
        "for _ in range(2):\n"
        "    fidelity_hook(4)('reduce', 'PRODUCT', 'float32', 1, 0, (0, 1, 2, 3))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, program], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"{program}:3: FidelityWarning: fidelity: TorchNeuron ")
    assert sum("FidelityWarning" in line for line in lines) == 1
