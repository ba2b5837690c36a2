"""From text to tokens: tokenizers, and tokenised text on disk, written once in portions and memory-mapped ever after.

A tokenizer is a byte-level BPE trained on the corpus, a local ``tokenizer.json``, or a name on the hub. All three end as one
``PreTrainedTokenizerFast``, saved beside every checkpoint, with an end-of-text token that separates documents.

Tokens: a split is two flat files, ``train.stream`` with its documents' tokens one after the other (uint16 or uint32, an end-of-text
token after each document), and ``train.ends`` with the position in the stream where each document ends (int64). A portion of
documents counts once ``progress.json`` says so; what an interrupted call appended after that is cut off before going on. The folder
gets its final name when it is complete.

Both are cached in ``$SOFTMAX_RNN_CACHE`` or ``~/.cache/softmax-rnn``. Deleting that costs time, nothing else, and what is damaged in
it is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..files import check_hub, writing
from .corpora import Corpus
from .options import check_range

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ADVICE = "make room, or set SOFTMAX_RNN_CACHE to another folder"
END = "<|endoftext|>"
PORTION = 256  # documents between two commits of tokens
SPLITS = ("train", "test")
BPE_CHARACTERS = 50_000_000  # more text than this changes a small vocabulary no further


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens.

    Args:
        source: bpe (trained on the training documents), a tokenizer.json or a folder with one, or a hub name owner/model.
        vocab: the size of the vocabulary, for bpe.
    """

    source: str = "bpe"
    vocab: int = 4096

    def __post_init__(self) -> None:
        check_range("tokenizer", self, vocab=(257, 2**20))  # at least every byte and the end of text


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached thing, made if needed."""
    root = os.environ.get("SOFTMAX_RNN_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "softmax-rnn")
    folder = Path(root) / kind
    with writing(folder, ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time builds ``path``, the others wait and find it built. The lock goes with the process that
    holds it.
    """
    from filelock import FileLock

    with writing(path.parent, ADVICE), FileLock(f"{path}.lock"):
        yield


def load_tokenizer(
    config: TokenizerConfig, fingerprint: str, documents: Callable[[], Iterator[str]]
) -> PreTrainedTokenizerFast:
    """The tokenizer; a BPE is trained on ``documents()`` unless the cache has the one of this corpus ``fingerprint``."""
    from transformers import PreTrainedTokenizerFast

    if config.source == "bpe":
        file = cache_folder("tokenizers") / f"bpe-{config.vocab}-{fingerprint[:16]}.json"
        with locked(file):
            if not is_json(file):
                _train_bpe(file, config.vocab, documents())
        return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=END, bos_token=END, pad_token=END)
    path = Path(os.path.expanduser(config.source))
    if config.source and path.exists():
        return _from_disk(path)
    if path.suffix == ".json" or config.source.count("/") != 1:
        raise UserError(
            f"No tokenizer at {config.source!r}: give bpe, an existing tokenizer.json, or a hub name owner/model."
        )
    return _from_hub(config.source)


def _train_bpe(file: Path, vocab: int, documents: Iterator[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def enough() -> Iterator[str]:
        left = BPE_CHARACTERS
        for text in documents:
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(enough(), trainer)
    partial = file.with_suffix(".partial")
    partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    os.replace(partial, file)


def is_json(file: Path) -> bool:
    """False if the file is not there, or not whole."""
    try:
        return isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def _from_disk(path: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from ..models import load_tokenizer as of_model

    try:
        if (path / "tokenizer_config.json").exists():
            return _with_end(
                AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False), str(path)
            )
        if path.is_dir() or path.suffix == ".gguf":  # a run, or a model
            return _with_end(of_model(path), str(path))
        return _with_end(PreTrainedTokenizerFast(tokenizer_file=str(path)), str(path))
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a tokenizer that transformers can read: {reason}") from None


def _from_hub(name: str) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception:  # not downloaded yet
        check_hub(name, "model", "use --tokenizer.source bpe or a local tokenizer.json")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except OSError as error:
            raise UserError(
                f"Cannot download the tokenizer {name} ({str(error).splitlines()[0]}): if it is gated, accept its terms at "
                f"https://huggingface.co/{name} and log in with `hf auth login`."
            ) from None
    return _with_end(tokenizer, name)


def _with_end(tokenizer: Any, name: str) -> PreTrainedTokenizerFast:
    if tokenizer.eos_token_id is None:
        known = tokenizer.get_vocab()
        end = next((t for t in (END, "</s>", "<eos>", "[SEP]", "<|end_of_text|>") if t in known), None)
        if end is None:
            raise UserError(f"The tokenizer {name} has no end-of-text token to put between documents.")
        tokenizer.eos_token = end
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def fingerprint_of(tokenizer: PreTrainedTokenizerFast) -> str:
    """A hash of everything that decides how text is cut."""
    text = tokenizer.backend_tokenizer.to_str() + str(tokenizer.eos_token_id)
    return hashlib.sha256(text.encode()).hexdigest()


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
    split: Callable[[str], Sequence[tuple[str, bool]]],
    max_tokens: int | None,
    advance: Callable[[int, int], None],
) -> None:
    """Write the tokens of ``corpus`` to ``folder``, going on where an interrupted call stopped.

    ``split(document)`` gives its parts, each with whether it is held out; a part ends with the end-of-text token.
    ``advance(documents, tokens)`` hears of the progress. With ``max_tokens`` the writing stops at the first portion beyond it.
    """
    shutil.rmtree(folder, ignore_errors=True)  # there only if it is damaged
    partial = folder.with_name(folder.name + ".partial")
    writer = _Writer.resume(partial, "uint16" if len(tokenizer) <= 2**16 else "uint32")
    for documents in _portions(corpus.documents(writer.documents)):
        parts = [part for document in documents for part in split(document)]
        texts = [text for text, _ in parts]
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        rows: dict[str, list[list[int]]] = {split: [] for split in SPLITS}
        for (_, held_out), tokens in zip(parts, encoded, strict=True):
            rows["test" if held_out else "train"].append([*tokens.ids, tokenizer.eos_token_id])
        writer.commit(rows, len(documents))
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
            lengths = np.array([len(document) for document in documents_of_split], np.int64)
            start = self.sizes[f"{split}.stream"] // np.dtype(self.dtype).itemsize
            flat = np.fromiter(
                (token for document in documents_of_split for token in document), self.dtype, lengths.sum()
            )
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
