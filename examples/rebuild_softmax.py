"""Softmax attention rebuilt from its recurrent networks, one order at a time.

    python examples/rebuild_softmax.py [--out FOLDER]

Prints how far the sum of the first N + 1 recurrent networks is from softmax, what each of them carries and how large its hidden
state is, and saves a picture of one attention row turning into softmax. Takes a few seconds.
"""

import argparse
import warnings
from pathlib import Path

import torch

import softmax_rnn as sr

D, T = 16, 48
ORDERS = (0, 1, 2, 4, 6, 8, 10)


def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One head whose last query looks for a few of the earlier keys, with scores up to about 4."""
    g = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 1, T, D, generator=g, dtype=torch.float64) for _ in range(3))
    k[..., [9, 23, 24, 37], :] += torch.tensor([0.5, 0.9, 0.6, 0.8])[:, None] * q[..., -1:, :]
    return q, k, v


def table(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[str]:
    """One line per order: error of the truncated series, share of the numerator, hidden state."""
    softmax = sr.attention(q, k, v)
    terms = sr.taylor_terms(q, k, v, max(ORDERS))
    sizes = terms.norm(dim=-1).mean(dim=(1, 2, 3))
    lines = [" order   largest difference from softmax   share of this order   hidden state H^n", " " + "-" * 76]
    for n in ORDERS:
        truncated = sr.Mechanism(sr.Taylor(n), sr.Sum(), allow_signed=True)
        error = (sr.attention(q, k, v, truncated) - softmax).abs().max().item()
        rows = sr.symmetric_dim(D, n)
        lines.append(f"{n:>6}   {error:>32.2e}   {sizes[n] / sizes.sum():>18.1%}   {rows:>9,} x {v.shape[-1]}")
    return lines


def row_weights(q: torch.Tensor, k: torch.Tensor, mechanism: sr.Mechanism | str) -> torch.Tensor:
    """The attention weights of the last query: with unit vectors as values, the output is the row itself."""
    return sr.attention(q, k, torch.eye(T, dtype=q.dtype)[None, None], mechanism)[0, 0, -1]


def picture(q: torch.Tensor, k: torch.Tensor, path: Path) -> None:
    """The last row of the attention matrix, order by order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = (0, 1, 2, 4, 10)
    target = row_weights(q, k, "softmax")
    figure, axes = plt.subplots(1, len(shown), figsize=(13, 2.7), sharey=True, layout="constrained")
    for axis, n in zip(axes, shown, strict=True):
        rebuilt = row_weights(q, k, sr.Mechanism(sr.Taylor(n), sr.Sum(), allow_signed=True))
        axis.bar(range(T), target, width=1.0, color="#c9d6e8", label="softmax")
        axis.step(range(T), rebuilt, where="mid", color="#b3261e", linewidth=1.3, label="sum of orders 0..N")
        axis.axhline(0, color="#666666", linewidth=0.6)
        axis.set_title(f"{n + 1} recurrent network{'s' if n else ''}  (N = {n})", fontsize=10)
        axis.set_xlabel("key", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    axes[0].set_ylabel("weight of the key", fontsize=9)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.suptitle("One row of attention, rebuilt from its Taylor orders", fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="where to put the picture")
    options = parser.parse_args()
    warnings.simplefilter("ignore", sr.MechanismWarning)
    q, k, v = problem()
    print(f"\nSoftmax attention over {T} keys of {D} channels is a sum of recurrent networks. Adding them up:\n")
    print("\n".join(table(q, k, v)))
    path = options.out / "rebuild_softmax.svg"
    picture(q, k, path)
    picture(q, k, path.with_suffix(".png"))
    print(f"\nOne attention row, order by order: {path} (and .png)\n")
    print(sr.explain("taylor2", B=1, H=8, T=16384, D=16, E=64))


if __name__ == "__main__":
    main()
