"""``base:`` of recipes: what is inherited, how it is merged, and where messages say that a key was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_dist.titan.problems import RecipeError
from neuron_dist.titan.recipe import load, recipe_names

BOTTOM = """\
description: the lowest
module: llama3
config: llama3_debugmodel
launch:
  ranks: 2
training:
  seq_len: 256
  steps: 7
optimizer:
  param_groups:
    0: {optimizer_kwargs: {lr: 1e-3}}
compile:
  components: [model, loss]
activation_checkpoint: {selective: {early_stop: true}}
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / f"{next(reversed(files))}.yaml"


def test_mappings_merge_and_lists_replace(tmp_path: Path) -> None:
    top = "base: bottom.yaml\ntraining:\n  steps: 9\ncompile:\n  components: [loss]\nactivation_checkpoint: full\n"
    recipe = load(str(write(tmp_path, bottom=BOTTOM, top=top)))
    assert recipe.titan["training"] == {"seq_len": 256, "steps": 9}
    assert recipe.titan["compile"] == {"components": ["loss"]}
    assert recipe.titan["activation_checkpoint"] == "full"
    assert recipe.titan["optimizer"]["param_groups"]["0"]["optimizer_kwargs"] == {"lr": 1e-3}
    assert (recipe.name, recipe.own.launch.ranks) == ("top", 2)


def test_each_key_keeps_the_place_where_it_was_written(tmp_path: Path) -> None:
    top = "base: middle.yaml\n\ntraining:\n  steps: 9\n"
    middle = "base: bottom.yaml\ncompile:\n  components: [loss]\n"
    file = write(tmp_path, bottom=BOTTOM, middle=middle, top=top)
    source = load(str(file), ["debug.seed=1"]).source
    places = {
        "training.steps": f"{file}:4",
        "training.seq_len": f"{tmp_path}/bottom.yaml:7",
        "compile.components": f"{tmp_path}/middle.yaml:3",
        "compile.components.0": f"{tmp_path}/middle.yaml:3",
        "optimizer.param_groups.0.optimizer_kwargs.lr": f"{tmp_path}/bottom.yaml:11",
        "debug.seed": "--set",
    }
    assert {key: source.where(key) for key in places} == places
    assert "compile.components.1" not in source.places


def test_a_text_of_ones_own_takes_the_place_of_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "text.yaml").write_text("base: llama3_debug\ndata: {path: book.txt}\n")
    (tmp_path / "back.yaml").write_text("base: text.yaml\ndata: {corpus: arithmetic}\n")
    text = load(str(tmp_path / "text.yaml")).own.data
    assert (text.corpus, text.path) == (None, "book.txt")
    back = load(str(tmp_path / "back.yaml")).own.data
    assert (back.corpus, back.path) == ("arithmetic", None)
    chosen = load("llama3_debug", ["data.path=other.txt"]).own.data
    assert (chosen.corpus, chosen.path) == (None, "other.txt")
    assert load("llama3_debug", ["data.path=null"]).own.data.corpus == "python"


def test_a_description_is_not_inherited(tmp_path: Path) -> None:
    assert load(str(write(tmp_path, bottom=BOTTOM))).own.description == "the lowest"
    assert load(str(write(tmp_path, bottom=BOTTOM, top="base: bottom.yaml\n"))).own.description == ""


def test_bases_are_found_beside_the_file_or_by_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "bottom.yaml").write_text(BOTTOM)
    (tmp_path / "deep" / "top.yaml").write_text("base: ../bottom.yaml\n")
    assert load(str(tmp_path / "deep" / "top.yaml")).titan["training"]["steps"] == 7
    shipped = write(tmp_path, mine="base: layouts/fsdp2\ntraining:\n  steps: 3\n")
    recipe = load(str(shipped))
    assert (recipe.own.launch.ranks, recipe.titan["training"]["steps"]) == (2, 3)
    assert recipe.source.where("training.seq_len").startswith("configs/recipes/llama3_debug.yaml:")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "base: b.yaml\n", "b": "base: a.yaml\n"}, "b.yaml:1: base: 'a.yaml'\n    inherits from itself: a.yaml -> b.yaml -> a.yaml"),
        ({"a": "module: x\nbase: a.yaml\n"}, "a.yaml:2: base: 'a.yaml'\n    inherits from itself: a.yaml -> a.yaml"),
        ({"bottom": BOTTOM, "a": "base: botom.yaml\n"}, "did you mean 'bottom.yaml'"),
        ({"a": "base: layouts/fsdp_2\n"}, "a.yaml:1: base: 'layouts/fsdp_2'\n    unknown recipe; did you mean 'layouts/fsdp2'"),
        ({"a": "base: [x]\n"}, "expected the name of a recipe, or the path of a file"),
    ],
)  # fmt: skip
def test_wrong_bases(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    write(tmp_path, **files)
    with pytest.raises(RecipeError) as caught:
        load(str(tmp_path / "a.yaml"))
    assert expected in str(caught.value)


def test_base_is_no_setting() -> None:
    with pytest.raises(RecipeError, match="is a key of recipe files"):
        load("llama3_debug", ["base=qwen3_debug"])


def test_shipped_recipes_say_what_they_are() -> None:
    descriptions: dict[str, str] = {}
    for name in recipe_names():
        recipe = load(name)
        assert recipe.name == name
        text = recipe.own.description
        assert text, name
        assert "\n" not in text
        assert text not in descriptions, (name, descriptions[text])
        descriptions[text] = name
