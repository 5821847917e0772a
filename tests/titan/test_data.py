"""Text to train on: what CPython carries, and the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from tokenizers import Tokenizer

from neuron_dist.titan.check import check
from neuron_dist.titan.corpus import python_corpus, split_document
from neuron_dist.titan.data import load_path, text_files
from neuron_dist.titan.problems import RecipeError
from neuron_dist.titan.tokenizer import VOCABULARY, tokenizer_folder, train_tokenizer


def test_the_corpus_is_the_same_each_time_and_no_larger_than_asked() -> None:
    small = python_corpus(200_000)
    assert small == python_corpus(200_000)
    assert 150_000 < sum(len(d.encode()) for d in small) <= 200_000
    whole = "".join(python_corpus())
    assert "def " in whole  # source
    assert "statement" in whole  # prose


def test_a_document_is_split_at_lines_and_nothing_is_lost() -> None:
    text = "one\n" * 100 + "x" * 50 + "\nlast"
    pieces = list(split_document(text, 40))
    assert "".join(pieces) == text
    assert all(len(p) <= 40 or p.count("\n") <= 1 for p in pieces)


def test_the_kept_tokenizer_reads_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder() / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCABULARY
    text = "The quick brown fox; naïve Übergrößen 漢字\n\tdef f(x): return x\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_tokenizer_of_another_size_is_trained(tmp_path: Path) -> None:
    train_tokenizer(python_corpus(200_000), tmp_path, 512)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 512


def test_a_folder_gives_its_text_files_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name, content in (
        ("b.txt", b"bee"),
        ("a.md", b"ay"),
        ("sub/c", "zé".encode()),
        ("x.bin", b"\0\xff"),
        (".hidden/d", b"no"),
    ):
        (tmp_path / name).write_bytes(content)
    assert [f.name for f in text_files(tmp_path)] == ["a.md", "b.txt", "c"]
    assert load_path(str(tmp_path))["text"] == ["ay", "bee", "zé"]
    assert load_path(str(tmp_path / "b.txt"))["text"] == ["bee"]


def test_tables_and_saved_datasets_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"body": "one"}, {"body": "two"}]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert load_path(str(table), "body")["body"] == ["one", "two"]
    with pytest.raises(ValueError, match=r"no column 'text'; data\.text_key may be one of body"):
        load_path(str(table))
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    assert load_path(str(tmp_path / "saved"), "body")["body"] == ["one", "two"]


def samples(ranks: int, batch: int, count: int, state: dict | None = None) -> tuple[list, list]:
    """``count`` batches of ``batch`` samples that each of ``ranks`` loaders gives, in the global order, and the states
    that the loaders then have."""
    config = check("llama3_parity", ranks=1).config
    tokenizer = config.tokenizer.build(tokenizer_path=config.hf_assets_path)
    loaders = [
        config.dataloader.build(
            dp_world_size=ranks, dp_rank=rank, tokenizer=tokenizer, seq_len=64, local_batch_size=batch
        )
        for rank in range(ranks)
    ]
    for loader in loaders:
        loader.load_state_dict(state or {})
    batches = [iter(loader) for loader in loaders]
    found = []
    for _ in range(count):
        of_ranks = [next(iterator)[0]["input"] for iterator in batches]
        found += [tuple(ids[i].tolist()) for i in range(batch) for ids in of_ranks]
    return found, [loader.state_dict() for loader in loaders]


def test_a_position_in_the_text_is_for_any_number_of_ranks() -> None:
    expected, _ = samples(1, 1, 24)
    assert len(set(expected)) == 24
    first, states = samples(4, 1, 3)
    assert first == expected[:12]
    assert all(state == states[0] for state in states)
    assert samples(2, 2, 3, states[3])[0] == expected[12:]
    assert samples(3, 1, 4, states[1])[0] == expected[12:]


def test_more_workers_than_one_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"dataloader.num_workers: 2\n.*expected 0 or 1"):
        check("llama3_parity", ["dataloader.num_workers=2"], ranks=1)
