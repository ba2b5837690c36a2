"""torch's own checks of our operators: schema, fake kernels (shapes, dtypes, strides), autograd registration, under compile."""

import pytest
import torch

from softmax_rnn.backends import delta, flash, linear, linear_delta, powers, scan, tiles
from softmax_rnn.slots import denominators, feature_maps

B, H, T, D = 2, 2, 9, 4


def x(*shape):
    return torch.randn(*shape, requires_grad=True)


def heads_last(*shape):
    b, h, t, d = shape
    return torch.randn(b, t, h, d).transpose(1, 2).requires_grad_()


LO, HI = torch.zeros(B, T, dtype=torch.long), torch.arange(1, T + 1)[None].expand(B, T).contiguous()
KEEP = torch.arange(T)[None] >= torch.tensor([[0], [2]])
CLOCK = torch.linspace(0, -3, T, dtype=torch.float64)[None].expand(B, T).contiguous()
CHANNELS = (CLOCK[..., None] * torch.linspace(0.1, 1, D, dtype=torch.float64)).contiguous()
SERIES = [1.0, 1.0, 0.5]
NO_CLOCK = (None,) * 4


def clocks():
    return tuple(c.clone().requires_grad_() for c in (CLOCK, CLOCK, CHANNELS, CHANNELS))


def steep():
    """Clocks that fall too fast to be split into factors."""
    return tuple((500 * c).detach().requires_grad_() for c in clocks())


def strengths(tokens):
    return torch.rand(B, tokens, requires_grad=True)


def sequences():
    values = (torch.randn(B, T, 3) * KEEP[..., None]).requires_grad_()  # 0 where padded, as the forms hand them over
    return x(B, H, T, D), x(B, T, D), values


CASES = {
    "flash": (flash._operator, lambda: (x(B, H, T, D), x(B, 1, T, D), x(B, 1, T, D), None, None, None, True, 0.5)),
    "flash, heads last": (
        flash._operator,
        lambda: (*(heads_last(B, H, T, D) for _ in range(3)), KEEP, None, None, True, 0.5),
    ),
    "flash, tiles": (flash._operator, lambda: (*(x(B, H, T, D) for _ in range(3)), KEEP, LO, HI, True, 0.5)),
    "weighted": (
        tiles.weighted_tiles,
        lambda: (*sequences(), *NO_CLOCK, None, None, None, True, SERIES, None, True),
    ),
    "weighted, everything": (
        tiles.weighted_tiles,
        lambda: (*sequences(), *clocks(), LO, HI, KEEP, True, [], 5.0, True),
    ),
    "softmax": (tiles.softmax_tiles, lambda: (*sequences(), *NO_CLOCK, None, None, None, None, True, None)),
    "softmax, everything": (tiles.softmax_tiles, lambda: (*sequences(), *clocks(), x(B, T), LO, HI, KEEP, True, 5.0)),
    "scan": (scan.scan_operator, lambda: (*sequences(), x(B, 15, 3), *NO_CLOCK, SERIES, 3)),
    "scan, everything": (scan.scan_operator, lambda: (*sequences(), x(B, 15, 3), *clocks(), SERIES, 3)),
    "delta, tiles": (
        delta._tiles_operator,
        lambda: (x(B, T, D), x(B, T, 3), strengths(T), None, None, None, None, SERIES, None, None, 0.5),
    ),
    "delta, tiles, everything": (
        delta._tiles_operator,
        lambda: (x(B, T, D), x(B, T, 3), strengths(5), *clocks()[1:3], x(B, T), LO[:, 4:], [], None, 5.0, 0.5),
    ),
    "delta, scan": (
        delta.delta_operator,
        lambda: (x(B, T, D), x(B, T, 3), strengths(T), x(B, 15, 3), None, None, SERIES, 0.5, 3),
    ),
    "delta, scan, everything": (
        delta.delta_operator,
        lambda: (x(B, T, D), x(B, T, 3), strengths(T), x(B, 15, 3), *clocks()[1:3], SERIES, 0.5, 3),
    ),
    "linear": (linear.scan_operator, lambda: (*sequences(), x(B, D, 3), *NO_CLOCK, 3)),
    "linear, everything": (linear.scan_operator, lambda: (*sequences(), x(B, D, 3), *clocks(), 3)),
    "linear, steep": (linear.scan_operator, lambda: (*sequences(), x(B, D, 3), *steep(), 3)),
    "linear delta": (
        linear_delta.delta_operator,
        lambda: (*sequences(), strengths(T), x(B, D, 3), *NO_CLOCK, 0.5, 3),
    ),
    "linear delta, tokens": (
        linear_delta.delta_operator,
        lambda: (*sequences(), strengths(T), x(B, D, 3), *clocks()[:2], None, None, 0.5, 3),
    ),
    "linear delta, everything": (
        linear_delta.delta_operator,
        lambda: (*sequences(), strengths(T), x(B, D, 3), *clocks(), 0.5, 3),
    ),
    "linear delta, steep": (
        linear_delta.delta_operator,
        lambda: (*sequences(), strengths(T), x(B, D, 3), *steep(), 0.5, 3),
    ),
    "write": (powers.write_operator, lambda: (x(B, T, D), x(B, T, 3), SERIES)),
    "read": (powers.read_operator, lambda: (x(B, T, D), x(B, 15, 3), SERIES)),
    "l2": (denominators._l2_operator, lambda: (x(B, H, T, D),)),
    "l2, heads last": (denominators._l2_operator, lambda: (heads_last(B, H, T, D),)),
    "elu + 1": (feature_maps.elu_plus_one, lambda: (x(B, H, T, D),)),
    "elu + 1, heads last": (feature_maps.elu_plus_one, lambda: (heads_last(B, H, T, D),)),
    "divide": (denominators.divide, lambda: (x(B, H, T, D), (x(B, H, T, 1).detach() + 5).requires_grad_())),
    "symmetric powers": (powers._operator, lambda: (x(T, D), [0, 1, 3])),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case):
    operator, arguments = CASES[case]
    torch.library.opcheck(operator.run, tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments()))


@pytest.mark.parametrize("case", CASES)
def test_operator_equals_its_plain_version(case):
    operator, arguments = CASES[case]
    args = [
        a.double().detach().requires_grad_(a.requires_grad)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in arguments()
    ]
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    results = []
    made = [out if isinstance(out, tuple) else (out,) for out in (operator.plain(*args), operator(*args))]
    for out in (found[: len(made[0])] for found in made):  # an operator may keep more for its backward pass
        weigh = [torch.linspace(1, 2, o.numel(), dtype=o.dtype).reshape(o.shape) for o in out]
        total = sum((o * w).sum() for o, w in zip(out, weigh, strict=True) if o.requires_grad)
        results.append((*out, *torch.autograd.grad(total, leaves)))
    for want, have in zip(*results, strict=True):
        if have.shape == (B, T, 3):  # what lies under the padding gets a gradient that its mask, outside, makes 0
            have, want = have * KEEP[..., None], want * KEEP[..., None]
        torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_operator_under_compile(case):
    torch._dynamo.reset()
    operator, arguments = CASES[case]
    args = arguments()

    def total(*args):
        out = operator(*args)
        return sum(o.double().sum() for o in (out if isinstance(out, tuple) else (out,))[: 1 if "l2" in case else 2])

    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    want = torch.autograd.grad(total(*args), leaves)
    have = torch.autograd.grad(torch.compile(total, fullgraph=True, backend="aot_eager")(*args), leaves)
    for a, b in zip(have, want, strict=True):
        torch.testing.assert_close(a, b)
