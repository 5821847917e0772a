"""English prose and program text that every CPython carries: something real to train on without a network.

The prose is the documentation behind ``help()``, the program text the standard library's top-level modules. Both
are cut into short documents and shuffled in an order that depends on nothing but their number, so every rank and
every machine with the same Python sees the same data.
"""

from __future__ import annotations

import functools
import importlib
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MAX_BYTES", "python_corpus"]

MAX_BYTES = 4 * 1024 * 1024
"""Where the corpus ends; about a million tokens."""
_DOCUMENT_CHARS = 2_000


@functools.cache
def python_corpus(max_bytes: int = MAX_BYTES) -> tuple[str, ...]:
    """Documents of prose and source text, at most ``max_bytes`` in UTF-8."""
    documents = [*_prose(), *_source_text()]
    random.Random(0).shuffle(documents)
    kept: list[str] = []
    size = 0
    for document in documents:
        size += len(document.encode())
        if size > max_bytes:
            break
        kept.append(document)
    return tuple(kept)


def split_document(text: str, limit: int = _DOCUMENT_CHARS) -> Iterator[str]:
    """``text`` in pieces of whole lines, each of at most about ``limit`` characters."""
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        if size + len(line) > limit and piece:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield "".join(piece)


def _prose() -> Iterator[str]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield from split_document(topics[name])


def _source_text() -> Iterator[str]:
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield from split_document(file.read_text(encoding="utf-8", errors="ignore"))
