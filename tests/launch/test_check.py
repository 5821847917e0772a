"""``neuron-dist check``."""

import pytest

from neuron_dist.titan.shims import torch_knows_spmd_types
from tests.launch.run import call, refused
from tests.titan.torchrun import needs_neuron

pytestmark = [needs_neuron, pytest.mark.timeout(600)]  # TorchTitan may have to be imported first
DEBUG = "check llama3_debug --set model.n_layers=2 training.seq_len=64"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_SIMULATION", "on")  # the command changes it; this gives it back


def test_everything_is_told():
    text = call(f"{DEBUG} optimizer.param_groups.0.optimizer_kwargs.lr=5e-4")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["layout"][1:] == ["4", "ranks:", "shard", "2", "x", "tensor", "2"]
    assert rows["training.seq_len"][1:] == ["64", "2048"]
    assert rows["optimizer.param_groups.0.optimizer_kwargs.lr"][1:] == ["0.0005", "0.0008"]
    assert "metrics.log_freq" not in rows
    assert rows["fsdp"][1:5] == ["2", "2", "0,", "2"]
    assert rows["tp"][1:4] == ["2", "2", "0-1"]
    assert "24 GiB of HBM" in text
    assert rows["0"][1] == "0-3"
    assert rows["0"][-2:] == ["0", "%"]
    assert "nothing of the layout is refused" in text


def test_all_fields():
    text = call(f"{DEBUG} --all --no-memory")
    assert "  metrics.log_freq = 1" in text
    assert "Memory" not in text


def test_what_does_not_fit_ends_with_1_and_says_what_would():
    line = "check full/llama3_8b -n 4 --set parallelism.data_parallel_shard_degree=1 model.n_layers=26"
    text = call(line, 1)
    assert "does not fit: " in text
    assert "activation_checkpoint: full" in text
    assert "parallelism.data_parallel_shard_degree: 2 (now 1), on 8 ranks: cluster.instances: 1" in text
    assert "parallelism.tensor_parallel_degree: 8" in text


def test_a_wrong_recipe_ends_with_2():
    text = refused("check llama3_debug --set training.stepz=5 -n 3")
    assert "training.stepz: 5 unknown key in training; did you mean 'steps'" in text
    assert "multiply to 4, expected 3" in text


@pytest.mark.skipif(torch_knows_spmd_types(), reason="torch has what the model asks for")
def test_what_torchtitan_cannot_lay_out_is_a_problem_of_the_recipe(tmp_path):
    recipe = tmp_path / "muse.yaml"
    recipe.write_text("module: muse_glimmer\nconfig: muse_glimmer_debugmodel\ndata: {corpus: python}\n")
    text = refused(f"check {recipe} -n 2 --set parallelism.data_parallel_shard_degree=2")
    assert "muse.yaml:2: config: 'muse_glimmer_debugmodel' TorchTitan cannot lay it out so: " in text
    assert "Muse Glimmer only supports" in text


def test_groups_that_torchneuron_refuses():
    text = call("check layouts/fsdp2 -n 6 --set parallelism.data_parallel_shard_degree=6 --no-memory")
    assert "fsdp, loss (group-size): " in text
