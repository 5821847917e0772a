"""A recipe: which TorchTitan config function, the fields it changes, and our own sections beside them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from neuron_dist.titan import source as yaml_source
from neuron_dist.titan.fields import Fields
from neuron_dist.titan.model import ModelSection
from neuron_dist.titan.problems import MISSING, Problem, RecipeError, one_of
from neuron_dist.titan.source import Source

__all__ = [
    "ClusterSection",
    "DataSection",
    "LaunchSection",
    "Recipe",
    "find",
    "load",
    "recipe_names",
]


@dataclass(kw_only=True)
class ClusterSection:
    """``cluster:``, the simulated machines."""

    product: str = "trn2.48xlarge"
    instances: int = 1
    lnc: int | None = None
    """Physical cores fused into one logical core; the product's own default unless set."""


@dataclass(kw_only=True)
class LaunchSection:
    """``launch:``, how many ranks the recipe is for."""

    ranks: int | None = None
    """Any number that the layout allows, unless set."""


@dataclass(kw_only=True)
class DataSection:
    """``data:``, the text to train on; without it the config function's own dataloader stands."""

    corpus: Literal["python", "arithmetic"] | None = None
    """``python``: documentation and source text that every CPython carries. ``arithmetic``: questions and answers, for
    configs of supervised fine-tuning."""
    path: str | None = None
    """A text file, a folder of them, a .jsonl or .parquet file, or a dataset saved with ``datasets``."""
    text_key: str = "text"
    """The column of a dataset that holds the text."""
    tokenizer: str | None = None
    """A folder with ``tokenizer.json``; the project's own (288 tokens) unless set."""


@dataclass(kw_only=True)
class Own:
    """The keys of a recipe that are ours; all others are fields of TorchTitan's ``Trainer.Config``."""

    description: str = ""
    """One line for the list of recipes."""
    module: str = ""
    """A TorchTitan module (``llama3``) or any importable module path."""
    config: str = ""
    """A function of that module's ``config_registry``."""
    model: ModelSection = field(default_factory=ModelSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    launch: LaunchSection = field(default_factory=LaunchSection)
    data: DataSection = field(default_factory=DataSection)
    trace: str | None = None
    """A folder in ``dump_folder`` (or an absolute path) in which each rank writes the trace of its simulated time;
    NEURON_DIST_TRACE comes first."""


OWN_KEYS = tuple(Own.__dataclass_fields__)
BASE = "base"
"""The key by which a recipe file names the one that it changes."""


@dataclass
class Recipe:
    """A recipe that was read, with ``--set`` applied; its TorchTitan fields are not checked yet."""

    name: str
    source: Source
    own: Own
    titan: dict[str, Any]
    """TorchTitan's sections as they stand in the YAML."""
    problems: list[Problem]
    """What is wrong in our own sections; values that are wrong stand at their defaults in ``own``."""

    @property
    def dump_folder(self) -> str:
        """Where a run of the recipe writes: ``outputs/<recipe>`` unless it says."""
        return str(self.titan.get("dump_folder", Path("outputs") / self.name))


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the package: ``llama3_debug``, ``layouts/fsdp2``."""
    with resources.as_file(_shipped()) as folder:
        return sorted(
            file.relative_to(folder).with_suffix("").as_posix() for file in folder.rglob("*.yaml")
        )


def find(recipe: str, beside: Path | None = None, where: str = "--recipe", key: str = "") -> Path:
    """The file of ``recipe``: a path, or the name of a recipe that ships with the package.

    A path counts from ``beside``, a folder, or else from the current one. ``where`` and ``key`` say in the message of
    :class:`RecipeError` who asked.
    """
    path = (beside or Path()) / Path(recipe).expanduser()
    if path.is_file():
        return path
    names = recipe_names()
    if recipe in names:
        with resources.as_file(_shipped()) as folder:
            return folder / f"{recipe}.yaml"
    if path.suffix in (".yaml", ".yml") or (len(path.parts) > 1 and path.parent.is_dir()):
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        hint = one_of(path.name, siblings or [f"{n}.yaml" for n in names], f"file in {path.parent}")
        expected = f"no such file; {hint}"
    else:
        expected = _unknown_name(recipe, names)
    value, text = (recipe, expected) if key else (None, f"{recipe}: {expected}")
    raise RecipeError([Problem(where, key, value, text)])


def _unknown_name(recipe: str, names: list[str]) -> str:
    """The nearest name, with or without its folder."""
    short = {name.rpartition("/")[2]: name for name in names}
    near = difflib.get_close_matches(recipe, [*names, *short], n=1)
    hint = f"; did you mean {short.get(near[0], near[0])!r}?" if near else "."
    return f"unknown recipe{hint} `neuron-dist recipes` lists all {len(names)}"


def _inherited(path: Path) -> Source:
    """The file with all that its ``base:``, and the base's own, have in turn."""
    chain: list[Path] = []
    sources: list[Source] = []
    file: Path | None = path
    while file is not None:
        chain.append(file.resolve())
        source = yaml_source.read(file)
        sources.append(source)
        base = source.values.pop(BASE, None)
        place = source.places.pop(BASE, source.name)
        if base is None:
            break
        if not isinstance(base, str):
            expected = "expected the name of a recipe, or the path of a file from this one's folder"
            raise RecipeError([Problem(place, BASE, base, expected)])
        file = find(base, file.parent, place, BASE)
        if file.resolve() in chain:
            circle = " -> ".join(p.name for p in [*chain[chain.index(file.resolve()) :], file])
            raise RecipeError([Problem(place, BASE, base, f"inherits from itself: {circle}")])
    *uppers, merged = sources
    for source in reversed(uppers):
        merged.values.pop("description", None)  # each file's own
        _make_way(merged, source.values.get("data"))
        yaml_source.overlay(merged, source)
    merged.name = sources[0].name
    return merged


def _make_way(source: Source, data: Any) -> None:
    """Takes the corpus out of ``source`` where ``data``, which comes above it, has a path, and the other way round."""
    below = source.values.get("data")
    if not isinstance(data, dict) or not isinstance(below, dict):
        return
    for key, other in (("corpus", "path"), ("path", "corpus")):
        if data.get(key) is not None and other not in data:
            below.pop(other, None)
            source.places.pop(f"data.{other}", None)


def load(recipe: str, settings: Sequence[str] = ()) -> Recipe:
    """Reads ``recipe`` and applies ``settings`` (``section.key=value``, as of ``--set``).

    Raises :class:`RecipeError` where the file cannot be read as a recipe. What is wrong in our own sections is in the
    result, so that it can be told with the rest.
    """
    path = find(recipe)
    source = _inherited(path)
    parsed = [yaml_source.parse_setting(setting) for setting in settings]
    _make_way(source, {k.removeprefix("data."): v for k, v in parsed if k.startswith("data.")})
    for key, value in parsed:
        if key.partition(".")[0] == BASE:
            expected = "is a key of recipe files; give the recipe itself, or set what differs"
            raise RecipeError([Problem("--set", key, value, expected)])
        yaml_source.merge(source, key, value, "--set")
    ours = {k: v for k, v in source.values.items() if k in OWN_KEYS}
    fields = Fields(source, "the recipe")
    own = fields.apply(Own(), ours)
    problems = fields.problems
    for key in ("module", "config"):
        if key not in ours:
            problems.append(Problem(source.name, key, MISSING, f"expected the {_NEEDED[key]}"))
    data = own.data
    if data.corpus and data.path:
        problems.append(
            Problem(
                source.where("data.path"),
                "data.path",
                data.path,
                "stands beside data.corpus; give one",
            )
        )
    titan = {k: v for k, v in source.values.items() if k not in OWN_KEYS}
    return Recipe(_name(path), source, own, titan, problems)


def _name(path: Path) -> str:
    """The shipped recipe's name, or the file's."""
    with resources.as_file(_shipped()) as folder:
        if path.resolve().is_relative_to(folder.resolve()):
            return path.resolve().relative_to(folder.resolve()).with_suffix("").as_posix()
    return path.stem


_NEEDED = {
    "module": "TorchTitan module to train, such as llama3",
    "config": "name of a function in the module's config_registry, such as llama3_debugmodel",
}


def _shipped() -> Any:
    return resources.files("configs") / "recipes"
