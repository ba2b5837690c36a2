"""Attention's numbers as they were when ``golden.json`` was recorded: every preset in every form, outputs and gradients.

The inputs are sines of whole numbers, so no random stream can move them. A refactoring leaves the file alone. ``record`` adds
a mechanism, or writes it again after a deliberate change of its formula:

    python -c "from tests.core.test_golden import record; record('gate', 'output_gate')"
"""

import json
from pathlib import Path

import pytest
import torch

import softmax_rnn as sr

from .problems import forms

FILE = Path(__file__).with_name("golden.json")
CASES = ("plain", "padding", "documents", "bidirectional", "continued")
B, H, HKV, T, D, E = 2, 4, 2, 9, 4, 3
TOLERANCE = 1e-12


def sines(*shape, start):
    """Numbers in [-1, 1] that fill a shape: sin(start), sin(start + 1), ..."""
    size = torch.Size(shape).numel()
    return torch.arange(start, start + size, dtype=torch.float64).sin().reshape(shape)


def tensors():
    """Every tensor that a mechanism may take."""
    return {
        "q": 2 * sines(B, H, T, D, start=1),
        "k": 2 * sines(B, HKV, T, D, start=1000),
        "v": sines(B, HKV, T, E, start=2000),
        "input_gate": sines(B, HKV, T, start=3000).sigmoid(),
        "output_gate": sines(B, H, T, start=4000).sigmoid(),
        "length_exponent": sines(H, start=5000),
        "norm_weight": 1 + sines(E, start=6000) / 2,
        "norm_bias": sines(E, start=7000),
    }


def options(case):
    """Masks and direction of a case."""
    if case == "padding":
        keep = torch.ones(B, T, dtype=torch.bool)
        keep[0, :2], keep[1, -3:] = False, False
        return {"key_padding_mask": keep}
    if case == "documents":
        return {"segment_ids": torch.tensor([[5, 5, 5, 5, 2, 2, 2, 2, 2], [1, 2, 2, 2, 2, 2, 7, 7, 7]])}
    return {"causal": case != "bidirectional"}


def output(name, form, case, args):
    """The attention of one case; "continued" is cut into two calls, with the state handed on."""
    call = {"mechanism": name, "form": form, **options(case)}
    if case != "continued":
        return sr.attention(**args, **call)
    per_token = {n: x for n, x in args.items() if x.ndim >= 3}
    rest = {n: x for n, x in args.items() if x.ndim < 3}
    first, second = ({n: x[:, :, part] for n, x in per_token.items()} for part in (slice(0, 4), slice(4, T)))
    begin, state = sr.attention(**first, **rest, **call, return_state=True)
    return torch.cat([begin, sr.attention(**second, **rest, **call, state=state)], 2)


def fingerprint(name, form, case, takes):
    """(number, size of its terms) by what it is: three entries of the output, and checksums of the output and of each gradient."""
    args = {n: x.requires_grad_() for n, x in tensors().items() if n in takes}
    out = output(name, form, case, args)
    grads = torch.autograd.grad((out * sines(*out.shape, start=8000)).sum(), list(args.values()), allow_unused=True)
    flat = out.detach().flatten()
    found = {f"out[{i}]": (flat[i].item(), 1.0) for i in (0, flat.numel() // 2, flat.numel() - 1)}
    named = {"out": out.detach(), **{f"d{n}": g for n, g in zip(args, grads, strict=True)}}
    for key, x in named.items():
        terms = torch.zeros(1) if x is None else x * sines(*x.shape, start=9000)
        found[key] = (terms.sum().item(), terms.abs().sum().item())
    return found


def cases_of(name):
    """Every form with every case that it has."""
    for case in CASES:
        for form in ["reference", *forms(name, causal=case != "bidirectional")]:
            yield form, case


def record(name, *takes):
    """Add a mechanism, or write it again: the reference's numbers, which every form must give."""
    takes = ("q", "k", "v", *takes)
    GOLDEN[name] = {c: {k: x for k, (x, _) in fingerprint(name, "reference", c, takes).items()} for c in CASES}
    rows = [
        f'"{n}": {{\n' + ",\n".join(f'"{c}": {json.dumps(x)}' for c, x in of.items()) + "}" for n, of in GOLDEN.items()
    ]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


GOLDEN = json.loads(FILE.read_text()) if FILE.exists() else {}


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_those_recorded(name):
    for form, case in cases_of(name):
        want = GOLDEN[name][case]
        found = fingerprint(name, form, case, takes=[key[1:] for key in want if key[0] == "d"])
        for key, (number, size) in found.items():
            error = abs(number - want[key])
            assert error <= TOLERANCE * max(size, 1), f"{name}, {form}, {case}: {key} is {number!r}, was {want[key]!r}"
