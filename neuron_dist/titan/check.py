"""Checks a recipe and resolves it to a ``Trainer.Config``, without a process group, a device or a torchrun."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectives.topology import Cluster, ClusterError, load_cluster
from neuron_dist.titan import recipe as recipes
from neuron_dist.titan import shims
from neuron_dist.titan.data import apply_data
from neuron_dist.titan.fields import Fields
from neuron_dist.titan.layout import Layout, check_layout, layout_of
from neuron_dist.titan.model import apply_model
from neuron_dist.titan.problems import Problem, RecipeError, one_of
from neuron_dist.titan.recipe import Recipe
from neuron_dist.titan.support import adapted, unsupported

__all__ = ["Plan", "check", "original_config"]

DEVICES = ("neuron", "cpu")


@dataclass(frozen=True)
class Plan:
    """A recipe that was found right, ready to be built."""

    recipe: Recipe
    config: Any
    """TorchTitan's ``Trainer.Config``."""
    cluster: Cluster
    layout: Layout
    device: str
    backend: str


def check(
    recipe: str,
    settings: Sequence[str] = (),
    *,
    ranks: int | None = None,
    device: str = "neuron",
    backend: str = "neuron",
) -> Plan:
    """The plan of ``recipe`` with ``settings``, or :class:`RecipeError` with everything that is wrong with it.

    ``ranks`` is how many there really are; without it the recipe's own ``launch.ranks`` counts. TorchTitan is then
    set to ``device``, until the next call.
    """
    loaded = recipes.load(recipe, settings)
    problems = [*loaded.problems]
    cluster = _cluster(loaded, problems)
    ranks = _ranks(loaded, ranks, cluster, problems)
    _backend(device, backend, problems)
    ours_is_right = not problems
    if device not in DEVICES or not (loaded.own.module and loaded.own.config):
        raise RecipeError(problems)
    shims.before_import(device)
    with _silent():
        try:
            config = _configured(loaded, problems)
        except RecipeError as error:
            raise RecipeError([*problems, *error.problems]) from None
        if ours_is_right:
            config, wrong = apply_data(config, loaded.own.data, loaded.source)
            problems += [*wrong, *_found(loaded, config, ranks)]
    if problems:
        raise RecipeError(problems)
    assert cluster is not None
    return Plan(loaded, config, cluster, layout_of(config, ranks), device, backend)


def _cluster(recipe: Recipe, problems: list[Problem]) -> Cluster | None:
    section = recipe.own.cluster
    try:
        return load_cluster(section.product, section.instances, section.lnc)
    except ClusterError as error:
        text = str(error)
        key = next((k for k in ("instances", "lnc") if f": {k} is" in text), "product")
        path = f"cluster.{key}"
        problems.append(Problem(recipe.source.where(path), path, getattr(section, key), text))
        return None


def _ranks(
    recipe: Recipe, actual: int | None, cluster: Cluster | None, problems: list[Problem]
) -> int:
    asked = recipe.own.launch.ranks
    where = recipe.source.where("launch.ranks")
    if asked is not None and asked < 1:
        problems.append(Problem(where, "launch.ranks", asked, "expected 1 or more"))
    elif asked is not None and actual is not None and asked != actual:
        problems.append(
            Problem(
                where,
                "launch.ranks",
                asked,
                f"but {actual} were started; start torchrun with --nproc-per-node {asked}, or add --set launch.ranks={actual}",
            )
        )
    ranks = actual or asked or 1
    if cluster is not None and ranks > cluster.cores:
        key = "launch.ranks" if asked is not None else "cluster.instances"
        needed = -(-ranks // cluster.cores_per_instance)
        value = ranks if asked is not None else cluster.instances
        expected = f"{ranks} ranks, but {cluster} has {cluster.cores} cores; cluster.instances: {needed} would do"
        problems.append(Problem(recipe.source.where(key), key, value, expected))
    return ranks


def _backend(device: str, backend: str, problems: list[Problem]) -> None:
    for option, value, known in (
        ("--device", device, DEVICES),
        ("--backend", backend, ("neuron", "gloo")),
    ):
        if value not in known:
            problems.append(
                Problem(option, "", value, f"{value}: {one_of(value, known, option.strip('-'))}")
            )
    if (device, backend) == ("neuron", "gloo"):
        problems.append(
            Problem(
                "--backend",
                "",
                backend,
                "gloo moves CPU tensors only; expected --device cpu with it",
            )
        )


def _configured(recipe: Recipe, problems: list[Problem]) -> Any:
    """The config function's result with the recipe's fields; raises when there is no such function."""
    config, wrong = apply_model(_config_of(recipe), recipe.own.model, recipe.source)
    problems += wrong
    config = dataclasses.replace(adapted(config), dump_folder=recipe.dump_folder)
    fields = Fields(recipe.source, "the recipe", recipes.OWN_KEYS)
    config = fields.apply(config, recipe.titan)
    problems += fields.problems
    return config


def original_config(recipe: Recipe) -> Any:
    """What the config function of a recipe that was found right returns by itself."""
    with _silent():
        return _config_of(recipe)


def _config_of(recipe: Recipe) -> Any:
    """What the config function returns, ours to change."""
    function = _config_function(recipe)
    try:
        return copy.deepcopy(function())
    except (ValueError, ImportError) as error:
        expected = f"does not work here: {' '.join(str(error).split())}"
        where = recipe.source.where("config")
        raise RecipeError([Problem(where, "config", recipe.own.config, expected)]) from None


def _config_function(recipe: Recipe) -> Any:
    from torchtitan.experiments import _supported_experiments
    from torchtitan.models import _supported_models

    module, function = recipe.own.module, recipe.own.config
    where = recipe.source.where
    names = [f"torchtitan.models.{module}.config_registry"] if module in _supported_models else []
    if module in _supported_experiments:
        names.append(f"torchtitan.experiments.{module}.config_registry")
    for name in names or [f"{module}.config_registry", module]:
        try:
            found = importlib.import_module(name)
            break
        except ModuleNotFoundError as error:
            if not name.startswith(str(error.name)):
                expected = f"cannot be imported here: {error}"
                raise RecipeError([Problem(where("module"), "module", module, expected)]) from None
    else:
        expected = (
            f"{one_of(module, _supported_models, 'module')}, or the path of an importable one"
        )
        raise RecipeError([Problem(where("module"), "module", module, expected)])
    if not callable(getattr(found, function, None)):
        known = [
            n
            for n, v in vars(found).items()
            if getattr(v, "__module__", "") == found.__name__ and n[0].islower()
        ]
        expected = one_of(function, known, f"config function of {module}")
        raise RecipeError([Problem(where("config"), "config", function, expected)])
    return getattr(found, function)


def _found(recipe: Recipe, config: Any, ranks: int) -> list[Problem]:
    """What cannot work of a config whose fields are right one by one."""
    findings = [*check_layout(config, ranks), *unsupported(config), *_tokenizer(config)]
    default = f"default of {recipe.own.config}"
    return [Problem(recipe.source.where(k, default), k, value, text) for k, value, text in findings]


def _tokenizer(config: Any) -> list[tuple[str, object, str]]:
    """Whether the tokenizer is there and its tokens are fewer than the model's embeddings."""
    from torchtitan.components.tokenizer import HuggingFaceTokenizer

    if not isinstance(config.tokenizer, HuggingFaceTokenizer.Config):
        return []
    folder = config.hf_assets_path
    if not Path(folder).is_dir():
        return [("hf_assets_path", folder, "no such folder; expected one with tokenizer.json")]
    embeddings = getattr(config.model_spec.model, "vocab_size", None)
    try:
        size = config.tokenizer.build(tokenizer_path=folder).get_vocab_size()
    except Exception as error:  # the tokenizers library raises plain Exception on a bad file
        return [("hf_assets_path", folder, f"cannot be read as a tokenizer: {error}")]
    if embeddings is not None and size > embeddings:
        return [
            (
                "hf_assets_path",
                folder,
                f"has {size} tokens, expected at most {embeddings}, the model's vocabulary",
            )
        ]
    return []


@contextlib.contextmanager
def _silent() -> Any:
    """No log lines from TorchTitan while it is only asked."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
