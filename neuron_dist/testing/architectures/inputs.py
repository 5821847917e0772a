"""Inputs for any model of transformers, from its forward's parameters, its configuration and ``inputs.yaml``."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

__all__ = ["candidates"]

Inputs = dict[str, torch.Tensor]
CHOSEN_TOKEN = 101
"""Not among the random tokens of a text, which are below 100."""


DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("inputs.yaml").read_text())


def candidates(kind: str, model: torch.nn.Module) -> Iterator[Inputs]:
    """Inputs to try with ``model`` of model type ``kind``, the likeliest first; all on the CPU.

    What the families' table has for the type comes first; then text with images, sounds or videos in it, where the
    model has a way of counting their tokens; then what its ``main_input_name`` suggests.
    """
    maker = _Maker(model)
    tables = [rows for name, rows in DATA["families"].items() if fnmatch.fnmatchcase(kind, name)]
    for rows in tables:
        for row in rows:
            yield maker.make(row)
    if "input_ids" in maker.parameters:
        for modality in DATA["modalities"].values():
            yield from maker.mixed(modality)
    main = getattr(model, "main_input_name", "input_ids")
    mains = [main] if isinstance(main, str) else main
    for name in dict.fromkeys((*mains, *DATA["main"])):
        for row in DATA["main"].get(name, []):
            if set(row) <= maker.parameters:
                yield from maker.completed(maker.make(row))


class _Maker:
    """Makes tensors for one model; noise is the same on every run."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.config: Any = model.config
        named = inspect.signature(model.forward).parameters.values()
        self.parameters = {p.name for p in named}
        self.required = {
            p.name for p in named if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        }
        self.random = torch.Generator().manual_seed(0)
        self.symbols = {name: self._symbol(what) for name, what in DATA["symbols"].items()}

    def _symbol(self, what: Any) -> int:
        if isinstance(what, int):
            return what
        level = [self.config]
        while level:
            for name in what["fields"]:
                for config in level:
                    if (value := _integer(getattr(config, name, None), what)) is not None:
                        return value
            level = [c for config in level for c in vars(config).values() if hasattr(c, "to_dict")]
        return what["otherwise"]

    def make(self, row: dict[str, Any]) -> Inputs:
        return {name: self._tensor(what) for name, what in row.items()}

    def _shape(self, shape: list[Any]) -> list[int]:
        return [self._number(size) for size in shape]

    def _number(self, expression: Any) -> Any:
        if isinstance(expression, list):
            return [self._number(item) for item in expression]
        return eval(str(expression), {"__builtins__": {}}, self.symbols)

    def _tensor(self, what: Any) -> torch.Tensor:
        if isinstance(what, list):
            return torch.randn(self._shape(what), generator=self.random)
        if "tokens" in what:
            words = min(self.symbols["words"], CHOSEN_TOKEN - 1)
            return torch.randint(3, words, self._shape(what["tokens"]), generator=self.random)
        if "fill" in what:
            value = what["fill"]
            value = self._number(value) if isinstance(value, str) else value
            return torch.full(self._shape(what["of"]), value)
        if "join" in what:
            return torch.cat([self._tensor(part) for part in what["join"]], dim=1)
        if "grid" in what:
            batch, rows, columns = self._shape(what["grid"])
            return torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).repeat(
                batch, 1, 1
            )
        values = torch.tensor(self._number(what["ints"]))
        times = self._number(what.get("times", 1))
        return values.repeat(times, *[1] * (values.dim() - 1))

    def completed(self, inputs: Inputs) -> Iterator[Inputs]:
        """``inputs`` and tokens: for a decoder, as a text beside them, and without; those with all that is required."""
        shape = ["batch", "length"]
        for extra in (
            ("decoder_input_ids",),
            ("input_ids",),
            ("input_ids", "decoder_input_ids"),
            (),
        ):
            whole = {**{name: self._tensor({"tokens": shape}) for name in extra}, **inputs}
            fits = self.required <= set(whole) <= self.parameters
            if fits and not set(extra) & set(inputs):
                yield whole

    def mixed(self, modality: dict[str, Any]) -> Iterator[Inputs]:
        """Text in which tokens stand for what the model makes of the modality's inputs."""
        features = getattr(self.model, modality["features"], None)
        token = self._token(modality["token"])
        if features is None or token is None:
            return
        accepted = set(inspect.signature(features).parameters)
        for row in modality["inputs"]:
            if not set(row) <= accepted & self.parameters:
                continue
            inputs = self.make(row)
            try:
                with torch.no_grad():
                    rows = _rows(features(**inputs))
            except Exception:  # not this model's inputs: the next may be
                continue
            batch = self.symbols["batch"]
            text = self._tensor({"tokens": ["batch", "length"]})
            places = torch.full((batch, rows // batch), token)
            tokens = torch.cat([text[:, :4], places, text[:, 4:]], dim=1)
            extra = (
                {"attention_mask": torch.ones_like(tokens)}
                if "attention_mask" in self.parameters
                else {}
            )
            if "mm_token_type_ids" in self.parameters:
                extra["mm_token_type_ids"] = (tokens == token).long()
            yield {"input_ids": tokens, **inputs, **extra}

    def _token(self, names: list[str]) -> int | None:
        """The id of the token that stands for an image; where the configuration leaves it open, one is chosen."""
        for name in names:
            if isinstance(value := getattr(self.config, name, None), int):
                return value
        for name in names:
            if hasattr(self.config, name):
                setattr(self.config, name, CHOSEN_TOKEN)
                return CHOSEN_TOKEN
        return None


def _integer(value: Any, what: dict[str, Any]) -> int | None:
    """The field's integer; of several the first, or the largest."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
        return max(value) if what.get("most") else value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rows(features: Any) -> int:
    """How many tokens ``get_image_features`` and its like have made, over the whole batch."""
    features = getattr(features, "pooler_output", features)
    if isinstance(features, torch.Tensor):
        return features.numel() // features.shape[-1]
    return sum(_rows(item) for item in features)
