"""One example for the report's slider: the scores of a query of a trained model with the keys before it."""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import UserError
from ..lab.config import RunConfig
from ..report.data import Example
from .scales import Cell, Scale

TOKENS = 40


def source(scale: Scale, folder: Path) -> RunConfig:
    """The run that the example is taken from."""
    return scale.config(Cell("softmax", scale.main), folder / "runs")


def take_example(scale: Scale, folder: Path) -> Example | None:
    """A query of the softmax run on the main corpus, seed 0, from its test text; None if its checkpoint is not there.

    Of all heads, and all queries of the second half, the one whose weights are neither even nor on a single key: their entropy is
    closest to half of its maximum.
    """
    import torch

    from ..lab.data import prepare
    from ..lab.train import quieten
    from ..microscope.probe import Call, scoped
    from ..models.loading import load_model, load_tokenizer

    config = source(scale, folder)
    quieten()
    try:
        model, tokenizer = load_model(config.folder), load_tokenizer(config.folder)
        test = prepare(config.data, config.tokenizer, quiet=True).test
    except UserError:
        return None
    rows = (test[i] for i in range(len(test)) if len(test[i]) >= TOKENS)
    ids = torch.as_tensor(next(rows)[:TOKENS].astype("int64"))[None]
    found: list[tuple[float, int, int, int, list[float]]] = []

    def look(call: Call) -> None:
        scores = (call.scale * call.q @ call.k.transpose(-1, -2))[0].double()
        for head in range(scores.shape[0]):
            for query in range(TOKENS // 2, TOKENS):
                x = scores[head, query, : query + 1]
                p = x.softmax(-1)
                even = float(-(p * p.clamp_min(1e-300).log()).sum()) / math.log(query + 1)
                found.append((abs(even - 0.5), call.layer, head, query, x.tolist()))

    with torch.no_grad(), scoped(model, look):
        model(ids)
    _, layer, head, query, x = min(found)
    return Example(
        model=config.folder.name,
        where=f"layer {layer + 1}, head {head + 1}",
        tokens=[str(tokenizer.decode([token])) for token in ids[0, : query + 1].tolist()],
        query=query,
        scores=[round(value, 5) for value in x],
        head_dim=model.config.head_dim,
        note=f"Test text of {scale.corpora[scale.main]}; keys of width {model.config.head_dim}.",
    )
