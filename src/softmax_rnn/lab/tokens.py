"""Tokenised text on disk: written once in portions, memory-mapped ever after.

A split is two flat files: ``train.stream``, its documents' tokens one after the other (uint16 or uint32, an
end-of-text token after each document), and ``train.ends``, the position in the stream where each document ends
(int64).

Interruption: a portion of documents counts once ``progress.json`` says so; whatever was appended after that is cut off
before going on. The folder gets its final name when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .corpora import Corpus

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PORTION = 256  # documents between two commits
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Tokens:
    """One split: the flat stream of tokens, and where each document ends in it."""

    stream: np.ndarray
    ends: np.ndarray


def open_tokens(folder: Path) -> tuple[Tokens, Tokens]:
    """The memory-mapped train and test tokens of a finished folder."""
    dtype = json.loads((folder / "about.json").read_text())["dtype"]

    def mapped(name: str, dtype: str) -> np.ndarray:
        file = folder / name
        return np.memmap(file, dtype, "r") if file.stat().st_size else np.empty(0, dtype)

    train, test = (Tokens(mapped(f"{split}.stream", dtype), mapped(f"{split}.ends", "int64")) for split in SPLITS)
    return train, test


def is_whole(folder: Path) -> bool:
    """True if a folder has all tokens that were written to it."""
    try:
        about = json.loads((folder / "about.json").read_text())
        train, test = open_tokens(folder)
        return bool(len(train.stream) + len(test.stream) == about["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_tokens(
    folder: Path,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    is_test: Callable[[str], bool],
    max_tokens: int | None,
    advance: Callable[[int, int], None],
) -> None:
    """Write the tokens of ``corpus`` to ``folder``, going on where an interrupted call stopped.

    ``advance(documents, tokens)`` hears of the progress. With ``max_tokens`` the writing stops at the first portion
    beyond it.
    """
    shutil.rmtree(folder, ignore_errors=True)  # there only if it is damaged
    partial = folder.with_name(folder.name + ".partial")
    writer = _Writer.resume(partial, "uint16" if len(tokenizer) <= 2**16 else "uint32")
    for texts in _portions(corpus.documents(writer.documents)):
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        rows: dict[str, list[list[int]]] = {split: [] for split in SPLITS}
        for text, tokens in zip(texts, encoded, strict=True):
            rows["test" if is_test(text) else "train"].append([*tokens.ids, tokenizer.eos_token_id])
        writer.commit(rows, len(texts))
        advance(writer.documents, writer.tokens)
        if max_tokens is not None and writer.tokens >= max_tokens:
            break
    about = {"source": corpus.name, "license": corpus.license, "dtype": writer.dtype, "tokens": writer.tokens}
    (partial / "about.json").write_text(json.dumps(about, indent=1))
    os.replace(partial, folder)


def _portions(documents: Iterator[str]) -> Iterator[list[str]]:
    while portion := list(islice(documents, PORTION)):
        yield portion


@dataclass
class _Writer:
    """Appends portions to the four files of a folder; ``sizes`` are the bytes of each that count."""

    folder: Path
    dtype: str
    documents: int
    tokens: int
    sizes: dict[str, int]

    @classmethod
    def resume(cls, folder: Path, dtype: str) -> _Writer:
        folder.mkdir(exist_ok=True)
        record = folder / "progress.json"
        done: dict[str, Any] = {"documents": 0, "tokens": 0, "sizes": {}}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            there = json.loads(record.read_text())
            if all((folder / name).stat().st_size >= size for name, size in there["sizes"].items()):
                done = {key: there[key] for key in done}
        for name in (f"{split}.{kind}" for split in SPLITS for kind in ("stream", "ends")):
            (folder / name).touch()
            os.truncate(folder / name, done["sizes"].setdefault(name, 0))
        return cls(folder, dtype, **done)

    def commit(self, rows: dict[str, list[list[int]]], documents: int) -> None:
        """Append, make it durable, then vouch for it."""
        for split, documents_of_split in rows.items():
            lengths = np.array([len(row) for row in documents_of_split], np.int64)
            start = self.sizes[f"{split}.stream"] // np.dtype(self.dtype).itemsize
            flat = np.fromiter((token for row in documents_of_split for token in row), self.dtype, lengths.sum())
            self._append(f"{split}.stream", flat)
            self._append(f"{split}.ends", start + lengths.cumsum())
            self.tokens += int(lengths.sum())
        self.documents += documents
        record = self.folder / "progress.json"
        new = record.with_suffix(".new")
        new.write_text(json.dumps({"documents": self.documents, "tokens": self.tokens, "sizes": self.sizes}))
        os.replace(new, record)

    def _append(self, name: str, values: np.ndarray) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(values.tobytes())
            file.flush()
            os.fsync(file.fileno())
            self.sizes[name] = file.tell()
