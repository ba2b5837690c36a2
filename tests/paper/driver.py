"""``softmax-rnn`` with a ``quick`` scale of seconds: python driver.py CORPUS reproduce quick --out FOLDER"""

from __future__ import annotations

import sys
from dataclasses import replace

from softmax_rnn import cli
from softmax_rnn.lab.config import RunConfig, RunSettings, TrainConfig
from softmax_rnn.lab.data import DataConfig
from softmax_rnn.lab.model import ModelConfig
from softmax_rnn.lab.tokenizer import TokenizerConfig
from softmax_rnn.paper import scales
from softmax_rnn.tasks import recall

SIZE = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}


def recipe(size: str) -> RunConfig:
    return RunConfig(
        data=DataConfig(length=64, test_fraction=0.1),
        tokenizer=TokenizerConfig("bpe", 300),
        model=ModelConfig("softmax", "nano", SIZE),
        train=TrainConfig(steps=20, warmup=2, lr=1e-2, batch=2, eval_every=10, log_every=2),
        run=RunSettings(save_every=5, keep=1),
    )


def shrink(corpus: str) -> None:
    """Make ``quick`` tiny, on a text of ours; of recall one mechanism, for one step."""
    recall.FIRST, recall.FIRST_STEPS = ("softmax",), 1
    scales.SCALES["quick"] = replace(
        scales.SCALES["quick"], corpora={corpus: "a text"}, main=corpus, recipe=recipe, seeds=1
    )


if __name__ == "__main__":
    shrink(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
