"""Corpora, tokenizers, the token cache, and batches."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmax_rnn import UserError
from softmax_rnn.lab import corpora
from softmax_rnn.lab import tokenizer as tokens
from softmax_rnn.lab.corpora import HUB, PACKAGED, Corpus, open_corpus
from softmax_rnn.lab.data import DataConfig, Order, Rows, blocks, collate, is_test, prepare
from softmax_rnn.lab.tokenizer import END, TokenizerConfig, Tokens, load_tokenizer, open_tokens, write_tokens


@pytest.mark.parametrize(
    ("name", "documents", "megabytes", "sign"),
    [
        ("stdlib", 500, 5, "import "),
        ("sotu", 200, 10, "Congress"),
        ("tunes", 3000, 1, "K:"),
        ("sympy", 500, 10, "import "),
        ("torch", 1500, 30, "import "),
    ],
)
def test_corpora_without_download(name: str, documents: int, megabytes: int, sign: str) -> None:
    corpus = open_corpus(name)
    texts = list(corpus.documents(0))
    assert len(texts) > documents
    assert sum(map(len, texts)) > megabytes * 1e6
    assert sum(sign in text for text in texts) > 0.5 * len(texts)
    assert corpus.license == PACKAGED[name].license
    assert list(corpus.documents(len(texts) - 2)) == texts[-2:]
    assert corpus.fingerprint() == open_corpus(name).fingerprint()


def test_local_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text(
        '{"text": "two", "body": "zwei"}\n\n{"text": "three", "body": "drei"}\n{"text": "  ", "body": " "}\n'
    )
    pq.write_table(
        pa.table({"text": ["four", "", None, "five"], "body": ["vier", "", None, "fuenf"]}), tmp_path / "c.parquet"
    )
    (tmp_path / "ignored.csv").write_text("six")
    assert list(open_corpus(str(tmp_path / "ignored.csv")).documents(0)) == ["six"]  # a single file may have any name
    everything = ["one", "two", "three", "four", "five"]
    assert list(open_corpus(str(tmp_path)).documents(0)) == everything
    assert list(open_corpus(str(tmp_path)).documents(3)) == everything[3:]
    assert list(open_corpus(str(tmp_path / "*.[tj]*")).documents(0)) == everything[:3]
    assert list(open_corpus(str(tmp_path / "[bc].*"), column="body").documents(0)) == ["zwei", "drei", "vier", "fuenf"]
    before = open_corpus(str(tmp_path)).fingerprint()
    (tmp_path / "a.txt").write_text("One")
    assert open_corpus(str(tmp_path)).fingerprint() != before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"a.jsonl": "{"}, "Line 1 of"),
        ({"a.jsonl": '{"text": "x"}\n{"txt": "x"}'}, "Line 2 of"),
        ({"a.parquet": "not parquet"}, "is not a readable parquet file"),
        ({}, "Nothing to read at"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: dict[str, str], says: str) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says):
        list(open_corpus(str(tmp_path)).documents(0))


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("")
    for name, says in (("nowhere", "No corpus 'nowhere'"), (str(tmp_path / "*.pdf"), "Cannot read")):
        with pytest.raises(UserError, match=says):
            open_corpus(name)


def _hub_answers(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def repo_info(self: Any, *args: Any, **kwargs: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", repo_info)


def _refusal(kind: str) -> Exception:
    import huggingface_hub.errors as errors

    made = getattr(errors, kind).__new__(getattr(errors, kind))
    assert isinstance(made, Exception)
    return made


@pytest.mark.parametrize("name", [*HUB, "someone/something"])
def test_a_hub_name_without_network_fails_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _hub_answers(monkeypatch, ConnectionError("no route"))
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **k: pytest.fail("asked the hub twice"))
    with pytest.raises(UserError, match=r"Cannot reach the Hugging Face hub .* use --data.source stdlib"):
        prepare(DataConfig(name, max_tokens=1000), TokenizerConfig())
    with pytest.raises(UserError, match="without an end"):
        prepare(DataConfig(name), TokenizerConfig())


@pytest.mark.parametrize(
    ("kind", "says"), [("GatedRepoError", "is gated: accept its terms"), ("RepositoryNotFoundError", "has no")]
)
def test_hub_refusals(kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _hub_answers(monkeypatch, _refusal(kind))
    with pytest.raises(UserError, match=says):
        next(open_corpus("fineweb").documents(0))
    with pytest.raises(UserError, match=says):
        load_tokenizer(TokenizerConfig("meta-llama/Llama-2-7b-hf"), "", lambda: iter([]))


def test_hub_datasets_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    asked: list[Any] = []

    def load_dataset(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return Dataset.from_dict({"text": [f"document {i} " * 20 for i in range(2000)]}).to_iterable_dataset()

    _hub_answers(monkeypatch, None)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    data = prepare(
        DataConfig("fineweb", length=16, max_tokens=20_000, test_fraction=0.1), TokenizerConfig(vocab=300), quiet=True
    )
    assert asked[-1] == (("HuggingFaceFW/fineweb", "CC-MAIN-2024-51"), {"split": "train", "streaming": True})
    total = len(data.train.tokens.stream) + len(data.test.tokens.stream)
    assert 20_000 <= total < 200_000
    assert list(open_corpus("pile").documents(1998)) == [f"document {i} " * 20 for i in (1998, 1999)]
    assert [asked[-1][0][0], HUB["slimpajama"][0]] == [
        "gmongaras/EleutherAI_the_pile_deduplicated",
        "gmongaras/SlimPajama-627B_Reupload",
    ]


def test_the_split_is_by_hash() -> None:
    texts = [f"text {i}" for i in range(20_000)]
    held_out = [is_test(text, 0.1, 0) for text in texts]
    assert abs(np.mean(held_out) - 0.1) < 0.01
    assert held_out == [is_test(text, 0.1, 0) for text in texts]
    assert held_out != [is_test(text, 0.1, 1) for text in texts]
    assert all(is_test(text, 0.2, 0) for text, out in zip(texts, held_out, strict=True) if out)


def test_a_bpe_is_trained_once_on_the_training_documents(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(str(corpus), length=16, test_fraction=0.2, split_seed=7)
    seen: list[str] = []
    documents = list(open_corpus(str(corpus)).documents(0))
    original = corpora._read

    def read(*args: Any) -> Iterator[str]:
        for text in original(*args):
            seen.append(text)
            yield text

    monkeypatch.setattr(corpora, "_read", read)
    data = prepare(config, TokenizerConfig("bpe", 400), quiet=True)
    first = [is_test(text, 0.2, 7) for text in documents].index(True) + 1  # a look that there is something to hold out
    assert len(seen) == 2 * len(documents) + first  # once for the vocabulary, once for the tokens
    again = prepare(config, TokenizerConfig("bpe", 400), quiet=True)
    assert len(seen) == 2 * len(documents) + 2 * first  # from the cache
    assert np.array_equal(data.train.tokens.stream, again.train.tokens.stream)
    assert isinstance(again.train.tokens.stream, np.memmap)
    assert len(data.tokenizer) <= 400
    text = "naïve café: 日本 \t x"
    assert data.tokenizer.decode(data.tokenizer.encode(text)) == text
    split = [is_test(text, 0.2, 7) for text in documents]
    assert len(data.test.tokens.ends) == sum(split)


def test_tokens_are_the_documents(corpus: Path) -> None:
    data = prepare(DataConfig(str(corpus), length=16, test_fraction=0.2), TokenizerConfig("bpe", 300), quiet=True)
    documents = [t for t in open_corpus(str(corpus)).documents(0) if not is_test(t, 0.2, 0)]
    end = data.tokenizer.eos_token_id
    stream, ends = data.train.tokens.stream, data.train.tokens.ends
    assert stream.dtype == np.uint16
    assert len(stream) == ends[-1]
    starts = [0, *ends[:-1]]
    assert [data.tokenizer.decode(stream[a : b - 1]) for a, b in zip(starts, ends, strict=True)] == documents
    assert all(stream[b - 1] == end for b in ends)


def test_other_tokenizers(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepare(
        DataConfig(str(corpus), length=16, test_fraction=0.2), TokenizerConfig("bpe", 300), quiet=True
    ).tokenizer
    made.save_pretrained(tmp_path / "folder")
    for source in (tmp_path / "folder", tmp_path / "folder" / "tokenizer.json"):
        same = load_tokenizer(TokenizerConfig(str(source)), "", lambda: pytest.fail("not to be trained"))
        assert same.encode("kala nos") == made.encode("kala nos")
        assert same.eos_token == END
    (tmp_path / "broken.json").write_text("{")
    _hub_answers(monkeypatch, ConnectionError("no route"))
    for source, says in (
        (str(tmp_path / "broken.json"), "is not a tokenizer"),
        ("none.json", "No tokenizer at"),
        ("someone/something", "Cannot reach the Hugging Face hub .* use --tokenizer.source bpe"),
    ):
        with pytest.raises(UserError, match=says):
            load_tokenizer(TokenizerConfig(source), "", lambda: iter([]))


@pytest.mark.parametrize("portions", [1, 2, 5])
def test_tokenising_survives_interruption(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portions: int
) -> None:
    monkeypatch.setattr(tokens, "PORTION", 40)
    source = open_corpus(str(corpus))
    tokenizer = prepare(DataConfig(str(corpus), length=16), TokenizerConfig("bpe", 300), quiet=True).tokenizer
    calls: list[int] = []

    def stop(documents: int, _: int) -> None:
        calls.append(documents)
        if len(calls) == portions:
            raise KeyboardInterrupt

    def write(name: str, advance: Any) -> Path:
        write_tokens(tmp_path / name, source, tokenizer, lambda text: [(text, "a" in text[:4])], None, advance)
        return tmp_path / name

    with pytest.raises(KeyboardInterrupt):
        write("parts", stop)
    assert not (tmp_path / "parts").exists()
    with (tmp_path / "parts.partial" / "train.stream").open("ab") as file:
        file.write(b"never vouched for")
    parts, whole = write("parts", lambda *_: None), write("whole", lambda *_: None)
    assert {p.name: p.read_bytes() for p in parts.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


def test_large_vocabularies_and_empty_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path) -> None:
    tokenizer = prepare(DataConfig(str(corpus), length=16), TokenizerConfig("bpe", 300), quiet=True).tokenizer
    monkeypatch.setattr(type(tokenizer), "__len__", lambda self: 70_000)
    source = Corpus("one", "none", lambda: "", lambda skip: iter(["kala nos"][skip:]))
    write_tokens(tmp_path / "t", source, tokenizer, lambda text: [(text, False)], None, lambda *_: None)
    train, test = open_tokens(tmp_path / "t")
    assert train.stream.dtype == np.uint32
    assert (len(test.stream), len(test.ends)) == (0, 0)
    assert json.loads((tmp_path / "t" / "about.json").read_text())["license"] == "none"


STREAM = Tokens(np.arange(100, dtype=np.uint16), np.array([3, 40, 41, 100]))


def test_packed_rows_are_the_stream() -> None:
    rows = Rows(STREAM, 16, "packed")
    assert len(rows) == 6
    assert np.concatenate([rows[i] for i in range(6)]).tolist() == list(range(96))
    batch = collate([rows[0], rows[5]], pad=9)
    assert batch["labels"].equal(batch["input_ids"])
    assert set(batch) == {"input_ids", "labels"}  # no mask


def test_document_rows_are_truncated_and_padded() -> None:
    rows = Rows(STREAM, 16, "documents")
    assert [row.tolist() for row in (rows[i] for i in range(4))] == [
        [0, 1, 2],
        list(range(3, 19)),
        [40],
        list(range(41, 57)),
    ]
    batch = collate([rows[0], rows[1]], pad=99)
    assert batch["input_ids"].shape == (2, 16)
    assert batch["input_ids"][0, 3:].eq(99).all()
    assert batch["labels"][0].tolist() == [0, 1, 2, *[-100] * 13]
    assert collate([rows[0], rows[2]], pad=0)["input_ids"].shape == (2, 3)


@settings(deadline=None, max_examples=40)
@given(count=st.integers(1, 40), seed=st.integers(0, 5), probe=st.integers(0, 39))
def test_the_order_is_a_permutation_per_epoch(count: int, seed: int, probe: int) -> None:
    rows = Rows(STREAM, 16, "packed")
    order = [int(row[0]) for row in (Order(rows, count, seed)[i] for i in range(count))]
    for start in range(0, count - 5, 6):
        assert sorted(order[start : start + 6]) == [0, 16, 32, 48, 64, 80]
    probe %= count
    assert int(Order(rows, count, seed)[probe][0]) == order[probe]  # the same without what came before
    assert len(Order(rows, count, seed)) == count


@settings(max_examples=60)
@given(
    text=st.text(alphabet="ab \n", min_size=1, max_size=300).map(lambda t: t * 97),
    fraction=st.floats(0.01, 0.5),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_blocks_are_the_document(text: str, fraction: float, seed: int) -> None:
    parts = blocks(text, fraction, seed)
    assert "".join(part for part, _ in parts) == text
    assert parts == blocks(text, fraction, seed)
    if len(text) >= 20:
        assert {held_out for _, held_out in parts} == {True, False}
    assert all(a[1] != b[1] for a, b in pairwise(parts))  # neighbours are joined


def test_one_text_file_is_enough(tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["so", "it", "goes", "on", "and", "on"], k=9)) for _ in range(4000)]
    file = tmp_path / "input.txt"
    file.write_text("\n".join(lines))
    config = DataConfig(str(file), length=64)
    data = prepare(config, TokenizerConfig("bpe", 300), quiet=True)
    assert len(data.test) >= 1
    test, train = (
        [line for part in data.tokenizer.decode(rows.tokens.stream).split(END) for line in part.splitlines()]
        for rows in (data.test, data.train)
    )
    assert sorted(test + train) == sorted(lines)
    assert 0.01 * len(lines) <= len(test) <= 0.1 * len(lines)
    other = prepare(replace(config, split_seed=1), TokenizerConfig("bpe", 300), quiet=True)
    assert other.fingerprint != data.fingerprint
    assert prepare(config, TokenizerConfig("bpe", 300), quiet=True).fingerprint == data.fingerprint


def test_a_text_may_come_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "to be or not to be, that is the question\n" * 200
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as pipe:
        pipe.write(text)
    named = open_corpus(f"/dev/fd/{read_end}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    typed = open_corpus("-")
    for corpus in (named, typed):
        assert list(corpus.documents(0)) == list(corpus.documents(0)) == [text]
        assert list(corpus.documents(1)) == []
    assert named.fingerprint() == typed.fingerprint()
    os.close(read_end)


def test_a_pipe_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softmax_rnn.files.PIPE_SECONDS", 0.0)
    read_end, write_end = os.pipe()
    with pytest.raises(UserError, match="nobody has written to this pipe"):
        open_corpus(f"/dev/fd/{read_end}")
    os.close(read_end)
    os.close(write_end)
