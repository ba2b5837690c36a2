"""Tokenizers: a byte-level BPE trained on the corpus, a local ``tokenizer.json``, or a name on the hub.

All three end as one ``PreTrainedTokenizerFast``, saved beside every checkpoint, with an end-of-text token that separates documents.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .cache import cache_folder, locked
from .corpora import check_hub
from .options import check_range

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
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

    try:
        if path.is_dir():
            return _with_end(AutoTokenizer.from_pretrained(path, local_files_only=True), str(path))
        return _with_end(PreTrainedTokenizerFast(tokenizer_file=str(path)), str(path))
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a tokenizer that transformers can read: {reason}") from None


def _from_hub(name: str) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception:  # not downloaded yet
        check_hub(name, "model")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
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
