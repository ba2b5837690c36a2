"""Random attention problems, and the numbers that all forms must agree on."""

from dataclasses import dataclass, field

import torch

import softmax_rnn as sr
from softmax_rnn.forms import FORMS
from softmax_rnn.problem import Dims, Setting
from softmax_rnn.slots.presets import PRESETS

# Windows that end within the tests' short sequences, and what a denominator makes of decay.
OWN = {
    "near_4": sr.Mechanism(sr.Near(sr.Exp(), sr.Taylor(2), window=4), sr.Sum()),
    "near_1_norm": sr.Mechanism(sr.Near(sr.Exp(), sr.Taylor(2), window=1), sr.Unnormalised(), norm="l2"),
    "length_decay": sr.Mechanism(sr.Exp(), sr.Length(), decay="token"),
    "taylor_length_decay": sr.Mechanism(sr.Taylor(2), sr.Length(), decay="token"),
    "clamp_decay": sr.Mechanism(sr.Exp(clamp=1.0), sr.Sum(min=1.0), decay="token"),
    "clamp_channel": sr.Mechanism(sr.Exp(clamp=1.0), sr.Sum(), decay="channel"),
    "taylor_channel": sr.Mechanism(sr.Taylor(2), sr.Sum(), decay="channel"),
    "softcap": sr.Mechanism(sr.Exp(softcap=2.0), sr.Sum()),
    "softcap_decay_sink": sr.Mechanism(sr.Exp(softcap=2.0), sr.Sum(sink=True), decay="head"),
    "clamp_delta": sr.Mechanism(sr.Exp(clamp=1.0), sr.Length(), decay="head", update="delta"),
    "exp_delta": sr.Mechanism(sr.Exp(softcap=2.0), sr.Unnormalised(), decay="token", update="delta", input_gate=True),
    "wall_delta": sr.Mechanism(sr.Exp(), sr.Unnormalised(), norm="rms", decay="channel", update="delta"),
    "elu_delta": sr.Mechanism(sr.Linear("elu", order=2), sr.Length(), update="delta", output_gate="after_norm"),
    "linear_exp": sr.Mechanism(sr.Linear("exp"), sr.Sum()),
    "linear_softmax": sr.Mechanism(sr.Linear("softmax"), sr.Sum()),
    "linear_relu2": sr.Mechanism(sr.Linear("relu2"), sr.Sum(eps=1e-6)),
}
for _name, _mechanism in OWN.items():
    sr.register(_name, _mechanism)

# Every named preset, and members of each family (odd orders only where they are allowed).
NAMES = [
    *PRESETS, *OWN, "taylor0", "taylor1_norm", "taylor2", "taylor3_norm", "taylor4", "elu0", "elu2", "elu3_norm",
    "relu3", "relu2_norm", "cosine1", "cosine3", "cosine2_norm", "taylor2_decay", "taylor3_norm_decay", "elu2_decay",
    "taylor2_norm_delta", "taylor3_norm_decay_delta",
]  # fmt: skip
FINITE = [n for n in NAMES if sr.mechanism(n).kernel.finite]


@dataclass
class Problem:
    """Sizes of a problem; ``arguments`` makes its tensors, always the same for the same seed."""

    B: int = 2
    H: int = 4
    Hkv: int = 2
    Tq: int = 13
    Tk: int | None = None
    D: int = 4
    E: int = 3
    dtype: torch.dtype = torch.float64
    seed: int = 0
    options: dict = field(default_factory=dict)

    def arguments(self, mechanism, leaves=True):
        m = sr.mechanism(mechanism)
        g = torch.Generator().manual_seed(self.seed)
        Tk = self.Tq if self.Tk is None else self.Tk

        def draw(*shape):
            x = torch.randn(*shape, dtype=torch.float64, generator=g).to(self.dtype)
            return x.requires_grad_() if leaves else x

        args = {"q": draw(self.B, self.H, self.Tq, self.D), "k": draw(self.B, self.Hkv, Tk, self.D)}
        args["v"] = draw(self.B, self.Hkv, Tk, self.E)
        sizes = {"B": self.B, "H": self.H, "Hkv": self.Hkv, "Tq": self.Tq, "Tk": Tk, "D": self.D, "E": self.E}
        for x in m.inputs:  # what the slots declare, drawn from their range
            value = draw(*(sizes[s] for s in x.sizes)).detach()
            low, high = max(x.low, -2.0), min(x.high, 2.0)
            args[x.name] = value if x.low == -x.high else (low + (high - low) * torch.sigmoid(value))
        return {n: x.requires_grad_() if leaves else x for n, x in args.items()}


def looks_back(name):
    """Is the mechanism for causal attention only?"""
    m = sr.mechanism(name)
    return m.decay is not None or m.update == "delta" or isinstance(m.kernel, sr.Near)


def piece(name, args, begin, end):
    """The tokens begin .. end - 1 of everything that has tokens."""
    axes = {"q": 2, "k": 2, "v": 2, "key_padding_mask": 1, "segment_ids": 1}
    for x in sr.mechanism(name).inputs:
        if x.per_token:
            axes[x.name] = 2
    return {n: x.narrow(axes[n], begin, end - begin) if n in axes else x for n, x in args.items()}


def forms(name, causal=True, **setting):
    """The forms other than the reference that can compute a mechanism."""
    s = Setting(sr.mechanism(name), Dims(1, 1, 1, 8, 8, 4, 3), causal=causal, **setting)
    return [f for f in ("parallel", "chunked", "recurrent") if FORMS[f].refuses(s) is None]


def outputs_and_gradients(name, problem, form, rounded=None, **options):
    """The output and the gradient of a fixed random functional of it with respect to every floating argument.

    ``rounded``: a dtype that the functional is rounded to, so that different dtypes are asked the same question.
    """
    args = problem.arguments(name)
    out = sr.attention(mechanism=name, form=form, **args, **problem.options, **options)
    direction = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    direction = direction.to(rounded or out.dtype).to(out.dtype)
    grads = torch.autograd.grad((out * direction).sum(), list(args.values()), allow_unused=True)
    found = {"out": out.detach()}
    for (arg, x), g in zip(args.items(), grads, strict=True):
        found[f"d{arg}"] = torch.zeros_like(x) if g is None else g
    return found


def assert_same(found, expected, tolerance, common_scale=False):
    """Every tensor within ``tolerance`` of the largest entry of the expected one.

    ``common_scale``: of the largest entry of all. Gradients are differences of terms of that size, and where they cancel (with a
    single key dq is exactly 0) nothing smaller can be asked of float32.
    """
    assert found.keys() == expected.keys()
    sizes = {n: x.abs().max().item() if x.numel() else 0.0 for n, x in expected.items()}
    for name, want in expected.items():
        have = found[name]
        assert have.shape == want.shape, name
        if want.numel() == 0:
            continue
        size = max(max(sizes.values()) if common_scale else sizes[name], 1e-3)
        error = (have - want).abs().max().item() / size
        assert error <= tolerance, f"{name}: relative error {error:.2e}"
