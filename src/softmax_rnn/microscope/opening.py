"""Opening the model and the texts of ``softmax-rnn inspect``; whatever is wrong with them is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from ..errors import UserError
from ..models import load_model, smollm2_path
from ..models.loading import first_line, locate
from .inspection import SHORTEST

ENCODERS = ("bert", "roberta", "xlm-roberta", "electra")


def open_model(name: str) -> tuple[PreTrainedModel, str | Path]:
    """The model, in evaluation mode, and where it lies; encoders come without a head."""
    where: str | Path = smollm2_path() if name == "smollm2" else name
    place, extra = locate(where)
    if not extra and _is_encoder(place):
        try:
            loaded: Any = AutoModel.from_pretrained(place, output_loading_info=True)
        except Exception as error:  # a damaged file can fail anywhere in its reader
            raise UserError(f"Cannot load a model from {name}: {first_line(error)}") from None
        model, found = loaded
        missing = sorted(k for k in found.get("missing_keys", ()) if "pooler" not in k)  # not used here
        if missing:
            raise UserError(f"{name} lacks {len(missing)} tensors that its config asks for, among them {missing[0]}.")
        return model.eval(), where
    return load_model(where).eval(), where


def _is_encoder(place: str | Path) -> bool:
    try:
        config = AutoConfig.from_pretrained(place)
    except Exception:  # load_model will say what is wrong
        return False
    return config.model_type in ENCODERS and not getattr(config, "is_decoder", False)


def read_text(path: str) -> str:
    """The text of a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    if not text.strip():
        raise UserError(f"{path} is empty: there is nothing to look at.")
    return text


def tokens(tokenizer: Any, text: str, limit: int) -> Tensor:
    """At most ``limit`` tokens, (1, T), and no more of the text than that can be."""
    ids = tokenizer(text[: 64 * limit], verbose=False)["input_ids"][:limit]
    return torch.tensor([ids], dtype=torch.long)


def longest(model: PreTrainedModel, limit: int) -> int:
    """``limit``, or what the model has positions for."""
    positions = getattr(model.config, "max_position_embeddings", None) or limit
    if model.config.model_type in ("roberta", "xlm-roberta"):
        positions -= 2  # its positions start at 2
    return min(limit, positions)


def split(ids: Tensor, limit: int, path: str) -> tuple[Tensor, Tensor | None]:
    """The first ``limit`` tokens, and up to as many after them, if enough for a calibration."""
    if ids.shape[1] < SHORTEST:
        raise UserError(f"{path} is too short: {ids.shape[1]} tokens, and at least {SHORTEST} are needed.")
    rest = ids[:, limit : 2 * limit]
    return ids[:, :limit], rest if rest.shape[1] >= 4 * SHORTEST else None
