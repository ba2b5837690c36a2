"""Tasks in the lab: rows, labels, accuracy, and one sentence for what does not fit."""

import json

import numpy as np
import pytest
import torch

from softmax_rnn.lab.config import from_dict
from softmax_rnn.lab.data import DataConfig, Order, collate, prepare
from softmax_rnn.lab.tokenizer import TokenizerConfig
from softmax_rnn.lab.train import train
from softmax_rnn.models import SoftmaxRnnForCausalLM
from softmax_rnn.tasks import NOTHING, task

SOURCE = "task:mqar,pairs=2,vocab=8,rows=500,test_rows=40"


def data(source=SOURCE, length=16, seed=0):
    return prepare(DataConfig(source, length=length, split_seed=seed), TokenizerConfig(), quiet=True)


def test_labels_are_a_language_models():
    found = data()
    tokens, answers = task(SOURCE).generate(500, 16, 0, 0)
    assert np.array_equal(found.train.tokens, tokens)
    assert np.array_equal(found.train.labels[:, 1:], answers[:, :-1])
    batch = collate([Order(found.train, 8, seed=3)[i] for i in range(8)], pad=found.tokenizer.pad_token_id)
    assert batch["input_ids"].shape == batch["labels"].shape == (8, 16)
    assert batch["labels"].ne(NOTHING).sum(1).tolist() == [2] * 8


def test_test_rows_are_other_rows_at_longer_lengths_too():
    found = data("task:mqar,pairs=4,rows=4000")
    assert len(found.train) == 4000
    assert len(found.test) == 512
    train = {row.tobytes() for row in found.train.tokens}
    assert not any(row.tobytes() in train for row in found.test.tokens)
    assert {n: rows.tokens.shape for n, rows in found.test.longer.items()} == {32: (256, 32), 64: (128, 64)}
    assert found.fingerprint != data("task:mqar,pairs=4,rows=4000", seed=1).fingerprint
    assert not np.array_equal(data("task:mqar,pairs=4,rows=4000", seed=1).train.tokens, found.train.tokens)


def test_tokens_are_numbers():
    tokenizer = data().tokenizer
    assert tokenizer("3 0 7")["input_ids"] == [3, 0, 7]
    assert len(tokenizer) == 9
    assert tokenizer.eos_token_id == 8  # which no row has


@pytest.mark.slow
def test_a_run_counts_right_answers(tmp_path):
    config = from_dict(
        {
            "data": {"source": SOURCE, "length": 16},
            "train": {"steps": 20, "batch": 32, "lr": 0.01, "eval_every": 20},
            "run": {"root": str(tmp_path), "threads": 1},
        },
        "tiny",
    )
    assert train(config, quiet=True).ending == "done"
    rows = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    (found,) = (row for row in rows if "test_loss" in row)
    assert rows[-1]["event"] == "done"
    model = SoftmaxRnnForCausalLM.from_pretrained(config.folder / "checkpoint-20").eval()
    test = data().test
    for key, part in {
        "test_accuracy": test,
        "test_accuracy_32": test.longer[32],
        "test_accuracy_64": test.longer[64],
    }.items():
        with torch.no_grad():
            guess = model(torch.from_numpy(part.tokens.astype(np.int64))).logits.argmax(-1)[:, :-1].numpy()
        asked = part.labels[:, 1:] != NOTHING
        assert found[key] == pytest.approx((guess == part.labels[:, 1:])[asked].mean())
    assert found["tokens"] == 20 * 32 * 2  # the asked ones


@pytest.mark.parametrize(
    ("source", "length", "said"),
    [
        ("task:mqra", 64, "did you mean mqar?"),
        ("task:", 64, "Unknown task ''"),
        ("task:mqar,pairs=200", 64, "only 128 keys"),
        ("task:mqar,pairs=16", 63, "needs rows of at least 64 tokens, got 63"),
    ],
)
def test_what_does_not_fit_is_one_sentence(source, length, said, tmp_path, refused):
    argv = [
        "train",
        "--preset",
        "tiny",
        "--data.source",
        source,
        "--data.length",
        str(length),
        "--run.root",
        str(tmp_path / "runs"),
    ]
    assert said in refused(*argv)
    assert not (tmp_path / "runs").exists()
