"""Hidden words, both sides in view: which are hidden, what a run measures, and that nothing takes it for a causal model."""

import json

import numpy as np
import pytest
import torch

from softmax_rnn.errors import UserError
from softmax_rnn.lab.config import from_dict
from softmax_rnn.lab.data import DataConfig, collate, prepare
from softmax_rnn.lab.tokenizer import TokenizerConfig
from softmax_rnn.lab.train import train
from softmax_rnn.models import SoftmaxRnnForMaskedLM, load_model

TEXT = "all work and no play makes jack a dull boy\n" * 300


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def data(text, masked):
    return prepare(DataConfig(str(text), length=16, masked=masked), TokenizerConfig("bpe", 300), quiet=True)


def test_some_tokens_are_hidden_and_asked_for(text):
    plain, hidden = data(text, 0.0), data(text, 0.25)
    assert (plain.both_sides, hidden.both_sides) == (False, True)
    assert plain.fingerprint != hidden.fingerprint
    shares = []
    for i in range(len(hidden.train)):
        read, labels = hidden.train[i]
        asked = labels != -100
        assert np.array_equal(np.where(asked, labels, read), plain.train[i])
        assert (read[asked] == hidden.tokenizer.mask_token_id).all()
        assert asked.any()
        shares.append(asked.mean())
    assert 0.15 < np.mean(shares) < 0.35
    assert np.array_equal(hidden.train[3], data(text, 0.25).train[3])  # always the same


def test_a_run_learns_them_and_measures_its_loss(text, tmp_path):
    config = from_dict(
        {
            "data": {"source": str(text), "length": 16, "masked": 0.2},
            "tokenizer": {"vocab": 300},
            "train": {"steps": 12, "batch": 8, "lr": 0.01, "eval_every": 12},
            "run": {"root": str(tmp_path / "runs"), "threads": 1},
        },
        "tiny",
    )
    assert train(config, quiet=True).ending == "done"
    rows = [json.loads(line) for line in (config.folder / "metrics.jsonl").read_text().splitlines()]
    (found,) = (row for row in rows if "test_loss" in row)
    model = SoftmaxRnnForMaskedLM.from_pretrained(config.folder / "checkpoint-12").eval()
    test = data(text, 0.2).test
    batch = collate([test[i] for i in range(len(test))], pad=0)
    with torch.no_grad():
        assert found["test_loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-5)
    assert found["test_loss"] < rows[0]["train_loss"]
    with pytest.raises(UserError, match="no causal language model"):
        load_model(config.folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data.masked", "1.5"], "data.masked must be at least 0 and below 1"),
        (["--data.source", "task:mqar", "--data.masked", "0.2"], "leave it out for a task"),
        (["--data.batching", "documents", "--data.masked", "0.2"], "packed rows"),
    ],
)
def test_what_does_not_fit_is_one_sentence(options, said, tmp_path, refused):
    assert said in refused("train", "--preset", "tiny", *options, "--run.root", str(tmp_path / "runs"))
