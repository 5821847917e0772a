"""Cases of TorchTitan's matrix: a recipe with settings on so many ranks, run on neuron and on Gloo from the same weights.

Initial weights depend on the layout and on the device's generator, so every run starts from a checkpoint that one rank
has made (:class:`Seeds`), once for each model. What is left to differ is the order in which a collective adds.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, with_config

from neuron_dist.testing.errors import RankError, RanksTimeout
from neuron_dist.testing.ranks import run_ranks
from neuron_dist.testing.titan_rank import refusal, train_rank
from neuron_dist.titan import recipe as recipes

__all__ = [
    "BACKENDS",
    "NOT_COMPARED",
    "Case",
    "Outcome",
    "Run",
    "Seeds",
    "Verdict",
    "compare",
    "load_cases",
    "refuse_case",
    "run_case",
]

BACKENDS = {"gloo": "cpu", "neuron": "neuron"}
"""Backend -> the device that it is run with."""
PRELOAD = ("neuron_dist.testing.titan_preload",)
NOT_COMPARED = "not compared"
"""The verdict on a case that was run on one backend alone."""
_MODEL_KEYS = ("module", "config", "model", "data")
"""Keys of a recipe on which the shapes of its weights depend."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Run:
    """One launch of a case. ``settings`` are those of ``--set``."""

    ranks: int = 2
    settings: tuple[str, ...] = ()


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Case:
    """One line of the matrix."""

    name: str = ""
    recipe: str = ""
    ranks: int = 2
    settings: tuple[str, ...] = ()
    then: tuple[Run, ...] = ()
    """Launches that go on in the same ``dump_folder``: a resumed run."""
    digits: int | None = None
    """To how many digits losses must agree: 5 up to two ranks, whose sums have one order; 3 beyond."""
    files: tuple[str, ...] = ()
    """Globs in ``dump_folder``, each of which must match after the case."""
    seed: bool = True
    """Whether it starts from the seed checkpoint of its model."""
    gloo: str = ""
    """Why it cannot run on Gloo and the CPU, where it cannot."""
    refused: str = ""
    """Why it can run on neither; the check must say so, with this text in its message."""
    fast: bool = False
    """Whether it is among those that `make test` runs."""

    @property
    def fingerprint(self) -> str:
        """Of what is run: a result holds for a case as long as this stays the same."""
        return hashlib.sha256(repr((self.recipe, self.runs, self.seed)).encode()).hexdigest()[:16]

    @property
    def runs(self) -> list[Run]:
        return [Run(self.ranks, self.settings), *self.then]

    @property
    def agree_to(self) -> int:
        most = max(run.ranks for run in self.runs)
        return self.digits if self.digits is not None else 5 if most <= 2 else 3


@dataclass
class Outcome:
    """How a case went on one backend."""

    losses: dict[int, float] = field(default_factory=dict)
    """Step -> loss, over all runs of the case; a step that was run again counts as it was last."""
    seconds: float = 0.0
    """Wall-clock seconds of all runs."""
    error: str = ""
    """Why it failed; empty where it ran."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """The inverse of :meth:`as_json`, also of what JSON has made of it."""
        return cls(**{**values, "losses": {int(k): v for k, v in values["losses"].items()}})


@dataclass(frozen=True)
class Verdict:
    """What a case came to on both backends."""

    ok: bool
    text: str


def load_cases(path: Path) -> list[Case]:
    """The cases of a YAML file: ``recipe``, ``settings`` for all, and ``cases``, name -> fields of :class:`Case`.

    Raises :class:`pydantic.ValidationError` on an unknown field or a value of another type.
    """
    content = yaml.safe_load(path.read_text())
    adapter = TypeAdapter(Case)
    cases = []
    for name, fields in content["cases"].items():
        fields = {"recipe": content["recipe"], **(fields or {})}
        cases.append(adapter.validate_python({"name": name, **fields}))
    common = tuple(content["settings"])
    return [_with_settings(case, common) for case in cases]


def _with_settings(case: Case, common: tuple[str, ...]) -> Case:
    then = tuple(Run(run.ranks, (*common, *case.settings, *run.settings)) for run in case.then)
    changes: dict[str, Any] = {"settings": (*common, *case.settings), "then": then}
    return Case(**{**vars(case), **changes})


class Seeds:
    """Checkpoints of initial weights in ``folder``, one for each model, made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, case: Case, timeout: float) -> Path:
        """The checkpoint of ``case``'s model; raises what run_ranks raises where it cannot be made."""
        values = recipes.load(case.recipe, case.settings).source.values
        model = repr([values.get(key) for key in _MODEL_KEYS])
        place = self.folder / hashlib.sha256(model.encode()).hexdigest()[:16]
        checkpoint = place / "checkpoint" / "step-0"
        if not (checkpoint / ".metadata").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            own = [s for s in case.settings if re.split("[.=]", s)[0] in _MODEL_KEYS]
            settings = [
                *own,
                "launch.ranks=null",
                "trace=null",
                "parallelism.data_parallel_shard_degree=-1",
                "parallelism.tensor_parallel_degree=1",
                "parallelism.expert_parallel_degree=1",
                f"dump_folder={place}",
                "checkpoint.enable=true",
                "checkpoint.create_seed_checkpoint=true",
            ]
            run_ranks(
                1,
                train_rank,
                *(case.recipe, settings, "cpu", "gloo", str(place)),
                backend=None,
                timeout=timeout,
                preload=PRELOAD,
            )
        return checkpoint


def run_case(case: Case, backend: str, folder: Path, seeds: Seeds, timeout: float) -> Outcome:
    """Runs ``case`` on ``backend`` in ``folder``, which is made anew; ``timeout`` seconds hold for each launch."""
    outcome = Outcome()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    device = BACKENDS[backend]
    start = time.monotonic()
    try:
        begin = _begin(seeds.of(case, timeout), case.settings) if case.seed else []
        for run in case.runs:
            settings = [*begin, *run.settings, f"dump_folder={folder}/out"]
            results = run_ranks(
                run.ranks,
                train_rank,
                *(case.recipe, settings, device, backend, str(folder)),
                backend=None,
                timeout=timeout,
                preload=PRELOAD,
            )
            outcome.losses |= results[0]
        missing = [glob for glob in case.files if not any((folder / "out").glob(glob))]
        if missing:
            outcome.error = f"wrote no {', '.join(missing)}"
    except (RankError, RanksTimeout) as error:
        outcome.error = str(error)
    outcome.seconds = time.monotonic() - start
    return outcome


def _begin(seed: Path, settings: Sequence[str]) -> list[str]:
    begin = [f"checkpoint.initial_load_path={seed}", "checkpoint.enable=true"]
    saves = any(setting.startswith("checkpoint.") for setting in settings)
    return begin if saves else [*begin, "checkpoint.load_only=true"]


def refuse_case(case: Case) -> Outcome:
    """Asks the check about a case that it must refuse."""
    start = time.monotonic()
    try:
        (said,) = run_ranks(
            1,
            refusal,
            *(case.recipe, case.settings, "neuron", "neuron"),
            backend=None,
            env={"WORLD_SIZE": str(case.ranks)},
            preload=PRELOAD,
        )
    except (RankError, RanksTimeout) as error:
        return Outcome(error=str(error))
    wanted = " ".join(case.refused.split())
    wrong = "" if wanted in " ".join(said.split()) else f"the check said: {said or 'nothing'}"
    return Outcome(seconds=time.monotonic() - start, error=wrong)


def compare(case: Case, outcomes: Mapping[str, Outcome]) -> Verdict:
    """The verdict on what ``case`` did on the backends that it was run on."""
    gloo, neuron = outcomes.get("gloo"), outcomes.get("neuron")
    if case.refused:
        refused = neuron or Outcome(error="was not asked")
        return Verdict(
            not refused.error,
            refused.error.strip().splitlines()[-1] if refused.error else "refused",
        )
    failed = {
        name: o for name, o in outcomes.items() if o.error and not (name == "gloo" and case.gloo)
    }
    if failed:
        return Verdict(
            False, "; ".join(f"{name} failed: {_last_line(o.error)}" for name, o in failed.items())
        )
    if neuron is None and (gloo is None or case.gloo):
        return Verdict(False, "not run")
    if case.gloo:
        return Verdict(True, "runs")
    if gloo is None or neuron is None:
        return Verdict(True, NOT_COMPARED)
    if gloo.losses.keys() != neuron.losses.keys() or not gloo.losses:
        return Verdict(False, f"steps {sorted(gloo.losses)} and {sorted(neuron.losses)}")
    if min(gloo.losses.values()) <= 0:
        return Verdict(False, "a loss of -1: TorchTitan's mark of a rank that does not know it")
    worst = max(
        abs(gloo.losses[step] - neuron.losses[step]) / abs(gloo.losses[step])
        for step in gloo.losses
    )
    if worst == 0:
        return Verdict(True, "equal")
    ok = worst <= 2 * 10**-case.agree_to
    return Verdict(ok, f"{'within' if ok else 'differs by'} {worst:.1e}")


def _last_line(text: str) -> str:
    traceback = text.partition("--- output of rank")[0]
    lines = [line for line in traceback.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else text
