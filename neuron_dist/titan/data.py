"""``data:`` of a recipe, by way of TorchTitan's own dataset registry, dataloader and tokenizer. Nothing is downloaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from neuron_dist.titan.corpus import python_corpus, split_document
from neuron_dist.titan.problems import Problem
from neuron_dist.titan.recipe import DataSection
from neuron_dist.titan.source import Source
from neuron_dist.titan.tokenizer import tokenizer_folder

__all__ = ["apply_data", "load_path", "text_files"]

CORPUS_DATASET = "python_corpus"
PATH_DATASET = "path"
_TABLES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def apply_data(config: Any, data: DataSection, source: Source) -> tuple[Any, list[Problem]]:
    """``config`` (a ``Trainer.Config``) with its tokenizer and dataloaders as ``data`` says, and what is wrong."""
    if not data.corpus and not data.path:
        return config, []
    from torchtitan.hf_datasets.text_datasets import ChatDataLoader, HuggingFaceTextDataLoader

    problems: list[Problem] = []
    path = Path(data.path).expanduser().resolve() if data.path else None
    if path is not None:
        wrong = _wrong_path(path)
        if wrong:
            problems.append(Problem(source.where("data.path"), "data.path", data.path, wrong))
    name = PATH_DATASET if path else CORPUS_DATASET
    changes: dict[str, Any] = {}
    if isinstance(config.dataloader, ChatDataLoader.Config):
        if data.corpus == "python":
            expected = "is no dialogue; expected arithmetic, or data.path with a table of questions and answers"
            problems.append(
                Problem(source.where("data.corpus"), "data.corpus", data.corpus, expected)
            )
        changes["dataloader"] = _asking(config.dataloader, path)
    elif not isinstance(config.dataloader, HuggingFaceTextDataLoader.Config):
        expected = f"{type(config.dataloader).__qualname__} reads no plain text; choose another config or drop data:"
        problems.append(Problem(source.where("data"), "data", data.path or data.corpus, expected))
        return config, problems
    elif data.corpus == "arithmetic":
        expected = (
            "is for configs of supervised fine-tuning, such as sft_debugmodel; expected python"
        )
        problems.append(Problem(source.where("data.corpus"), "data.corpus", data.corpus, expected))
    else:
        _register(data)
        changes["dataloader"] = _reading(config.dataloader, name, path)
        workers = config.dataloader.num_workers
        if workers > 1:
            expected = "expected 0 or 1: each worker would read the whole text"
            key = "dataloader.num_workers"
            problems.append(Problem(source.where(key), key, workers, expected))
    validator = getattr(config.validator, "dataloader", None)
    if isinstance(validator, HuggingFaceTextDataLoader.Config):
        changes["validator"] = dataclasses.replace(
            config.validator, dataloader=_reading(validator, name, path)
        )
    folder = Path(data.tokenizer).expanduser().resolve() if data.tokenizer else tokenizer_folder()
    if not (folder / "tokenizer.json").is_file():
        expected = "expected a folder with tokenizer.json"
        problems.append(
            Problem(source.where("data.tokenizer"), "data.tokenizer", data.tokenizer, expected)
        )
    changes["hf_assets_path"] = str(folder)
    return dataclasses.replace(config, **changes), problems


def _reading(dataloader: Any, name: str, path: Path | None) -> Any:
    """``dataloader``, a ``HuggingFaceTextDataLoader.Config``, for our dataset and in its order."""
    from neuron_dist.titan.global_order import GlobalOrderDataLoader

    fields = {f.name: getattr(dataloader, f.name) for f in dataclasses.fields(dataloader)}
    fields |= {"dataset": name, "dataset_path": str(path) if path else None}
    return GlobalOrderDataLoader.Config(**fields)


def _asking(dataloader: Any, path: Path | None) -> Any:
    """A dataloader of dialogues that reads ``path``, or our own questions."""
    table = path or chat_file()
    kind = _TABLES.get(table.suffix, "json")
    arguments = {"data_files": str(table), "split": "train"}
    return dataclasses.replace(dataloader, dataset_path=kind, load_dataset_kwargs=arguments)


def chat_file() -> Path:
    """The table of questions and answers that ships with the package."""
    with resources.as_file(resources.files("configs") / "assets" / "chat") as folder:
        return folder / "arithmetic.jsonl"


def _register(data: DataSection) -> None:
    """Adds our two datasets to TorchTitan's registry."""
    from torchtitan.hf_datasets import DatasetConfig
    from torchtitan.hf_datasets.text_datasets import DATASETS

    DATASETS[CORPUS_DATASET] = DatasetConfig(
        path="the Python installation",
        loader=lambda path: _dataset(python_corpus()),
        sample_processor=_text,
    )
    DATASETS[PATH_DATASET] = DatasetConfig(
        path="",
        loader=partial(load_path, text_key=data.text_key),
        sample_processor=partial(_text, key=data.text_key),
    )


def load_path(path: str, text_key: str = "text") -> Any:
    """The dataset at ``path``: text file, folder of text files, table with a column ``text_key``, saved dataset."""
    import datasets

    place = Path(path)
    if (place / "state.json").is_file() or (place / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(path)
        loaded = loaded["train"] if isinstance(loaded, datasets.DatasetDict) else loaded
    elif place.suffix in _TABLES:
        loaded = datasets.load_dataset(_TABLES[place.suffix], data_files=path, split="train")
    else:
        return _dataset([piece for file in text_files(place) for piece in _pieces(file)], text_key)
    if text_key not in loaded.column_names:
        raise ValueError(
            f"{path}: no column {text_key!r}; data.text_key may be one of {', '.join(loaded.column_names)}"
        )
    return loaded


def text_files(path: Path) -> list[Path]:
    """``path`` itself, or in a fixed order all files below it that hold UTF-8 text."""
    if path.is_file():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and _visible(file, path) and _is_text(file)
    ]


def _wrong_path(path: Path) -> str | None:
    if not path.exists():
        return "no such file or folder"
    if path.is_file() and path.suffix not in _TABLES and not _is_text(path):
        return f"expected UTF-8 text, a table ({', '.join(_TABLES)}) or a folder"
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    if path.is_dir() and not saved and not text_files(path):
        return (
            "expected a folder with UTF-8 text files or a dataset saved with datasets' save_to_disk"
        )
    if path.is_file() and path.stat().st_size == 0:
        return "is empty"
    return None


def _pieces(file: Path) -> Iterator[str]:
    yield from split_document(file.read_text(encoding="utf-8"))


def _visible(file: Path, root: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(root).parts)


def _is_text(file: Path) -> bool:
    with file.open("rb") as stream:
        head = stream.read(4096)
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4 and len(head) == 4096  # a character cut at the end
    return b"\0" not in head


def _dataset(documents: Sequence[str], key: str = "text") -> Any:
    import datasets

    return datasets.Dataset.from_dict({key: list(documents)})


def _text(sample: dict[str, Any], key: str = "text") -> str:
    return sample[key]
