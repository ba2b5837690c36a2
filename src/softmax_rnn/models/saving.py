"""What a saved folder carries beside config and weights: a stub that leads to this package, and a model card.

With ``auto_map`` in config.json and the stub, ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` works
wherever softmax-rnn is installed, without importing it first, and says what to install where it is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..slots.mechanism import Mechanism

if TYPE_CHECKING:
    from .llama import SoftmaxRnnConfig

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
    auto = next((k for k, v in AUTO_MAP.items() if v.endswith(f".{architecture}")), "AutoModel")
    return CARD.format(
        name=name, auto=auto, table="\n".join(f"| {key} | {value} |" for key, value in rows),
    )  # fmt: skip


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

model = load_model("this folder")
```

Plain transformers opens this folder, too, but computes the model's own attention.
"""


def _names(names: list[Any]) -> str:
    """Runs of equal names: `taylor2` (layers 0-3), `softmax` (layer 4)."""
    runs: list[tuple[str, int, int]] = []
    for i, name in enumerate("given by its parts" if isinstance(n, dict) else f"`{n}`" for n in names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], i)
        else:
            runs.append((name, i, i))
    if len(runs) == 1:
        return runs[0][0]
    return ", ".join(f"{n} (layer{'s' if b > a else ''} {a}{f'-{b}' if b > a else ''})" for n, a, b in runs)


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

model = {auto}.from_pretrained("this folder")
```

Without the import, `{auto}.from_pretrained("this folder", trust_remote_code=True)` does the same where softmax-rnn is installed.
"""
