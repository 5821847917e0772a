"""A recipe: which TorchTitan config function, the fields it changes, and our own sections beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from neuron_dist.titan import source as yaml_source
from neuron_dist.titan.fields import Fields
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

    corpus: Literal["python"] | None = None
    """``python``: documentation and source text that every CPython carries."""
    path: str | None = None
    """A text file, a folder of them, a .jsonl or .parquet file, or a dataset saved with ``datasets``."""
    text_key: str = "text"
    """The column of a dataset that holds the text."""
    tokenizer: str | None = None
    """A folder with ``tokenizer.json``; the project's own (288 tokens) unless set."""


@dataclass(kw_only=True)
class Own:
    """The keys of a recipe that are ours; all others are fields of TorchTitan's ``Trainer.Config``."""

    module: str = ""
    """A TorchTitan module (``llama3``) or any importable module path."""
    config: str = ""
    """A function of that module's ``config_registry``."""
    cluster: ClusterSection = field(default_factory=ClusterSection)
    launch: LaunchSection = field(default_factory=LaunchSection)
    data: DataSection = field(default_factory=DataSection)
    trace: str | None = None
    """A folder in ``dump_folder`` (or an absolute path) in which each rank writes the trace of its simulated time;
    NEURON_DIST_TRACE comes first."""


OWN_KEYS = tuple(Own.__dataclass_fields__)


@dataclass
class Recipe:
    """A recipe that was read, with ``--set`` applied; its TorchTitan fields are not checked yet."""

    name: str
    source: Source
    own: Own
    titan: dict[str, Any]
    """TorchTitan's sections as they stand in the YAML."""

    @property
    def dump_folder(self) -> str:
        """Where a run of the recipe writes: ``outputs/<recipe>`` unless it says."""
        return str(self.titan.get("dump_folder", Path("outputs") / self.name))


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the package."""
    return sorted(
        f.name.removesuffix(".yaml") for f in _shipped().iterdir() if f.name.endswith(".yaml")
    )


def find(recipe: str) -> Path:
    """The file of ``recipe``: a path, or the bare name of a recipe that ships with the package."""
    path = Path(recipe).expanduser()
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        shipped = [f"{n}.yaml" for n in recipe_names()]
        hint = one_of(path.name, siblings or shipped, f"file in {path.parent}")
        raise RecipeError([Problem("--recipe", "", None, f"{recipe}: no such file; {hint}")])
    if recipe not in recipe_names():
        raise RecipeError(
            [Problem("--recipe", "", None, f"{recipe}: {one_of(recipe, recipe_names(), 'recipe')}")]
        )
    with resources.as_file(_shipped() / f"{recipe}.yaml") as file:
        return file


def load(recipe: str, settings: Sequence[str] = ()) -> Recipe:
    """Reads ``recipe`` and applies ``settings`` (``section.key=value``, as of ``--set``).

    Raises :class:`RecipeError` with all that is wrong in the file itself and in our own sections.
    """
    path = find(recipe)
    source = yaml_source.read(path)
    for setting in settings:
        key, value = yaml_source.parse_setting(setting)
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
    if problems:
        raise RecipeError(problems)
    return Recipe(
        path.stem, source, own, {k: v for k, v in source.values.items() if k not in OWN_KEYS}
    )


_NEEDED = {
    "module": "TorchTitan module to train, such as llama3",
    "config": "name of a function in the module's config_registry, such as llama3_debugmodel",
}


def _shipped() -> Any:
    return resources.files("configs") / "recipes"
