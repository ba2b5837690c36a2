"""Attention by any mechanism in a module of your own: five lines, and any mechanism by name.

    python examples/own_module.py --mechanism taylor2

Trains two such layers to repeat what came before, in a few seconds, and checks that reading an input in two pieces, with a state
between them, gives the same output as reading it at once.
"""

import argparse

import torch
from torch import Tensor, nn

import softmax_rnn as sr


class MyAttention(nn.Module):
    """Four heads over 64 channels."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        self.mechanism, self.qkv, self.out = mechanism, nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Tensor, state: sr.State | None = None) -> tuple[Tensor, sr.State]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)  # each (batch, heads, tokens, channels)
        y, state = sr.attention(q, k, v, self.mechanism, state=state, return_state=True)  # causal by default
        return self.out(y.transpose(1, 2).flatten(2)), state


class Repeater(nn.Module):
    """Predicts the next of 8 symbols, in rows whose second half repeats the first."""

    def __init__(self, mechanism: str) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(8, 64), nn.Embedding(32, 64)
        self.first, self.second, self.head = MyAttention(mechanism), MyAttention(mechanism), nn.Linear(64, 8)

    def forward(self, row: Tensor) -> Tensor:
        x = self.symbols(row) + self.places(torch.arange(row.shape[1]))
        x = x + self.first(x)[0]
        return self.head(x + self.second(x)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mechanism", default="norm", help="any that needs no tensors beside q, k and v")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Repeater(args.mechanism)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(args.steps + 1):
        row = torch.randint(8, (32, 16)).repeat(1, 2)
        loss = nn.functional.cross_entropy(model(row)[:, 16:-1].flatten(0, 1), row[:, 17:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step:4}  loss {loss.item():.3f}")

    layer, x = model.first, torch.randn(1, 10, 64)
    whole, _ = layer(x)
    begin, state = layer(x[:, :6])
    end, _ = layer(x[:, 6:], state)
    print(f"in two pieces: the same within {(torch.cat([begin, end], 1) - whole).abs().max().item():.0e}")


if __name__ == "__main__":
    main()
