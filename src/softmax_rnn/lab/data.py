"""From documents to batches: split by hash, tokenise once, then pack or pad.

Split: a document goes to the test set if a seeded hash of its text falls below ``test_fraction``; equal documents stay together.
Where that leaves one of the sets empty, as for a text in one file, contiguous blocks of each document are held out instead.
Tokens: made once per corpus, split and tokenizer, and found again by the hash of all three (``tokenizer.py`` has the files).

Batches: ``packed`` cuts the flat stream into rows of ``length`` tokens (the usual way to train language models: the end-of-text
token is the only border, a row may hold parts of several documents, and nothing is padded or masked). ``documents`` is
the paper's way: one document per row, truncated to ``length``, padded on the right to the longest of the batch, with the padding left
out of the loss. Neither needs an attention mask: the padding comes after every token that counts, and attention is causal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import UserError
from .corpora import Corpus, open_corpus
from .options import check_range
from .tokenizer import (
    TokenizerConfig,
    Tokens,
    cache_folder,
    fingerprint_of,
    is_whole,
    load_tokenizer,
    locked,
    open_tokens,
    write_tokens,
)

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from ..tasks.base import TaskRows


BLOCK = 8192  # characters of a document that are held out together


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it is cut into batches.

    Args:
        source: a built-in corpus (stdlib, sympy, torch, sotu, tunes, fineweb, slimpajama, pile), a file, folder or
            glob, - for standard input, or a hub name owner/dataset.
        subset: which configuration of a hub dataset, where it has several.
        column: the field that holds the text, in .jsonl, .parquet and hub datasets.
        length: tokens per row, at most.
        batching: packed (rows of a continuous stream) or documents (one document per row, truncated and padded).
        test_fraction: the share of the documents that is held out for testing; in a text of one file, of its blocks.
        split_seed: the seed that decides what is held out.
        max_tokens: use at most this many tokens; needed for hub datasets, which are streamed.
        masked: hide this share of the tokens and predict them from both sides; 0 predicts the next token.
    """

    source: str = "stdlib"
    subset: str | None = None
    column: str = "text"
    length: int = 256
    batching: Literal["packed", "documents"] = "packed"
    test_fraction: float = 0.01
    split_seed: int = 0
    max_tokens: int | None = None
    masked: float = 0.0

    def __post_init__(self) -> None:
        check_range("data", self, length=(2, 2**24), max_tokens=(1, 10**15), split_seed=(-(2**63), 2**63 - 1))
        if not 0 < self.test_fraction < 1:
            raise UserError(f"data.test_fraction must be between 0 and 1, got {self.test_fraction}.")
        if not 0 <= self.masked < 1:
            raise UserError(f"data.masked must be at least 0 and below 1, got {self.masked}.")
        if self.masked and (self.source.startswith("task:") or self.batching != "packed"):
            raise UserError(
                "data.masked needs the packed rows of a text: leave it out for a task and for data.batching documents."
            )


def is_test(text: str, fraction: float, seed: int) -> bool:
    """True if the document belongs to the test set: decided by its text and the seed alone.

    >>> is_test("a document", 0.0, 0), is_test("a document", 1.0, 0)
    (False, True)
    """
    digest = hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(16, "little", signed=True)
    )
    return int.from_bytes(digest.digest(), "little") < fraction * 2**64


@dataclass(frozen=True)
class Prepared:
    """What a run trains on; ``both_sides`` says that what is asked stands where the label is, and every token sees every other one."""

    tokenizer: PreTrainedTokenizerFast
    train: Rows | TaskRows | MaskedRows
    test: Rows | TaskRows | MaskedRows
    fingerprint: str
    license: str
    both_sides: bool = False


def prepare(config: DataConfig, tokenizer: TokenizerConfig, *, quiet: bool = False) -> Prepared:
    """Tokenizer and rows of a run, from the cache if they are there, else made now, with a progress bar."""
    if config.source.startswith("task:"):
        from ..tasks.base import prepare_task

        return prepare_task(config)
    corpus = open_corpus(config.source, config.subset, config.column)
    if corpus.endless and config.max_tokens is None:
        raise UserError(
            f"{config.source} is streamed without an end: say how much of it to use, for example --data.max_tokens 100000000"
        )
    in_blocks = not corpus.endless and not _both_sets(corpus, config)
    found = _prepare(config, tokenizer, corpus, in_blocks, quiet)
    if not in_blocks and not corpus.endless and not (len(found.train) and len(found.test)):
        found = _prepare(config, tokenizer, corpus, True, quiet)  # documents enough, but too short
    for split, rows in (("training", found.train), ("test", found.test)):
        if len(rows) == 0:
            assert isinstance(rows, Rows)
            has = len(rows.tokens.stream)
            if has == 0 and next(corpus.documents(0), None) is None:
                raise UserError(f"There is no text in {config.source}.")
            raise UserError(
                f"The {split} set of {config.source} has {has:,} tokens, and is smaller than one row of {config.length} tokens: give more "
                "text (of a short one a tenth is for testing), a smaller data.length, or another data.test_fraction."
            )
    return mask(found, config) if config.masked else found


def _both_sets(corpus: Corpus, config: DataConfig) -> bool:
    """True if the hash sends a document to each set."""
    seen = set()
    for text in corpus.documents(0):
        seen.add(is_test(text, config.test_fraction, config.split_seed))
        if len(seen) == 2:
            return True
    return False


def _prepare(config: DataConfig, tokenizer: TokenizerConfig, corpus: Corpus, in_blocks: bool, quiet: bool) -> Prepared:
    from .progress import tokenising_bar

    fraction, seed = config.test_fraction, config.split_seed
    split_key = f"{corpus.fingerprint()} {fraction} {seed}" + (f" blocks of {BLOCK}" if in_blocks else "")

    def split(text: str) -> list[tuple[str, bool]]:
        return blocks(text, fraction, seed) if in_blocks else [(text, is_test(text, fraction, seed))]

    def training_text() -> Iterator[str]:
        return (part for text in corpus.documents(0) for part, held_out in split(text) if not held_out)

    trained = load_tokenizer(tokenizer, hashlib.sha256(split_key.encode()).hexdigest(), training_text)
    key = hashlib.sha256(f"1 {split_key} {config.max_tokens} {fingerprint_of(trained)}".encode()).hexdigest()
    folder = cache_folder("tokens") / key[:24]
    with locked(folder):
        if not is_whole(folder):
            with tokenising_bar(corpus.name, config.max_tokens, quiet=quiet) as advance:
                write_tokens(folder, corpus, trained, split, config.max_tokens, advance)
    train, test = (Rows(tokens, config.length, config.batching) for tokens in open_tokens(folder))
    return Prepared(trained, train, test, key, corpus.license)


def blocks(text: str, fraction: float, seed: int) -> list[tuple[str, bool]]:
    """A document as contiguous parts, each with whether it is held out: blocks of some 8,000 characters (a tenth of a shorter document)
    that end with a line where there is one, of which a seeded choice of ``fraction``, and at least one, is the test set.

    >>> parts = blocks("all work and no play\\n" * 5000, 0.1, seed=0)
    >>> round(sum(len(part) for part, held_out in parts if held_out) / 105_000, 2)
    0.16
    """
    size = min(BLOCK, max(1, len(text) // 10))
    cuts = [0]
    while len(text) - cuts[-1] >= 2 * size:  # the last block is not a small one
        line = text.find("\n", cuts[-1] + size, cuts[-1] + 2 * size)
        cuts.append(line + 1 if line >= 0 else cuts[-1] + size)
    pieces = [text[a:b] for a, b in pairwise([*cuts, len(text)])]
    if len(pieces) < 2:
        return [(text, is_test(text, fraction, seed))]
    entropy = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    chosen = np.random.default_rng([seed % 2**64, int.from_bytes(entropy, "little")]).permutation(len(pieces))
    held = set(chosen[: min(len(pieces) - 1, math.ceil(fraction * len(pieces)))].tolist())
    stretches = groupby(enumerate(pieces), key=lambda item: item[0] in held)
    return [("".join(piece for _, piece in group), held_out) for held_out, group in stretches]


@dataclass(frozen=True)
class Rows:
    """The rows of one split: ``packed`` pieces of the stream, or ``documents``."""

    tokens: Tokens
    length: int
    batching: str

    def __len__(self) -> int:
        return len(self.tokens.stream) // self.length if self.batching == "packed" else len(self.tokens.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        if self.batching == "packed":
            return self.tokens.stream[index * self.length : (index + 1) * self.length]
        start = int(self.tokens.ends[index - 1]) if index else 0
        return self.tokens.stream[start : min(int(self.tokens.ends[index]), start + self.length)]


MASK = "<|mask|>"


@dataclass(frozen=True)
class MaskedRows:
    """Rows with some tokens hidden, (2, length) each: what is read, and the hidden tokens as labels. A row always hides the same."""

    rows: Rows
    share: float
    mask: int
    seed: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        tokens = np.array(self.rows[index], np.int64)
        rng = np.random.default_rng([self.seed, index])
        hidden = rng.random(len(tokens)) < self.share
        hidden[rng.integers(len(tokens))] = True  # at least one
        return np.stack([np.where(hidden, self.mask, tokens), np.where(hidden, tokens, -100)])


def mask(found: Prepared, config: DataConfig) -> Prepared:
    """The same text with hidden tokens; the tokenizer gets a token that stands for them."""
    found.tokenizer.add_special_tokens({"mask_token": MASK})
    share, token, seed = config.masked, found.tokenizer.mask_token_id, abs(config.split_seed)
    assert isinstance(found.train, Rows)
    assert isinstance(found.test, Rows)
    train, test = MaskedRows(found.train, share, token, seed), MaskedRows(found.test, share, token, seed + 1)
    return replace(found, train=train, test=test, both_sides=True, fingerprint=f"{found.fingerprint}-masked-{share}")


class Order:
    """Rows in the order of training: item i is the same row whatever the number of processes, and after every restart.

    Each epoch is a new permutation, seeded by (seed, epoch); the length is exactly what the run consumes.
    """

    def __init__(self, rows: Rows | TaskRows | MaskedRows, count: int, seed: int) -> None:
        self.rows, self.count, self.seed = rows, count, seed
        self._epoch, self._permutation = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        epoch, position = divmod(index, len(self.rows))
        if epoch != self._epoch:
            self._epoch, self._permutation = (
                epoch,
                np.random.default_rng([self.seed, epoch]).permutation(len(self.rows)),
            )
        return self.rows[int(self._permutation[position])]


def collate(rows: list[np.ndarray], pad: int) -> dict[str, torch.Tensor]:
    """Right-pad to the longest row; the labels of the padding are -100, which the loss leaves out. A row of two has labels of its own.

    >>> batch = collate([np.array([5, 6, 7]), np.array([8, 9])], pad=0)
    >>> batch["input_ids"].tolist(), batch["labels"].tolist()
    ([[5, 6, 7], [8, 9, 0]], [[5, 6, 7], [8, 9, -100]])
    """
    import torch

    longest = max(row.shape[-1] for row in rows)
    ids = np.full((len(rows), longest), pad, np.int64)
    labels = np.full((len(rows), longest), -100, np.int64)
    for i, row in enumerate(rows):
        ids[i, : row.shape[-1]], labels[i, : row.shape[-1]] = row if row.ndim == 2 else (row, row)
    return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
