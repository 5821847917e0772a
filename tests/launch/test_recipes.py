"""``neuron-dist recipes``."""

from neuron_dist.titan.recipe import recipe_names
from tests.launch.run import call, refused


def test_all_are_listed_with_what_they_are():
    lines = call("recipes").splitlines()
    assert lines[0].split() == ["recipe", "model", "layout", "ranks", "what"]
    assert [line.split()[0] for line in lines[1:]] == recipe_names()
    (line,) = (x for x in lines if x.startswith("layouts/pp2_fsdp2_tp2 "))
    for text in ("llama3 debug", "shard 2 x tensor 2 x pipeline 2", " 8 ", "3D"):
        assert text in line


def test_a_word_filters():
    lines = call("recipes deepseek").splitlines()[1:]
    assert lines
    assert all("deepseek" in line.lower() for line in lines)


def test_one_is_shown_with_what_it_inherits():
    text = call("recipes checkpoint/async")
    for key, value, file in (
        ("checkpoint.async_mode", "async", "async.yaml"),
        ("checkpoint.interval", "10", "save.yaml"),
        ("launch.ranks", "2", "fsdp2.yaml"),
        ("training.seq_len", "256", "llama3_debug.yaml"),
    ):
        (line,) = (x for x in text.splitlines() if x.startswith(key))
        assert line.split()[1] == value
        assert f"{file}:" in line
    assert "torchrun --nproc-per-node 2 -m neuron_dist.train --recipe checkpoint/async" in text


def test_an_unknown_name_is_refused():
    assert "did you mean 'layouts/hsdp2x2'" in refused("recipes layouts/hdsp2x2")
