"""torch's own checks of our operators: schema, fake kernels (shapes, dtypes, strides), autograd registration, under compile."""

import pytest
import torch

from softmax_rnn.features import _symmetric_powers
from softmax_rnn.norms import _l2
from softmax_rnn.ops.chunked import _chunked
from softmax_rnn.ops.flash import _flash
from softmax_rnn.ops.kronecker import _read, _write
from softmax_rnn.ops.tiled import _tiled
from softmax_rnn.pointwise import _divide, _elu_plus_one

B, H, T, D = 2, 2, 9, 4


def x(*shape):
    return torch.randn(*shape, requires_grad=True)


def heads_last(*shape):
    b, h, t, d = shape
    return torch.randn(b, t, h, d).transpose(1, 2).requires_grad_()


LO, HI = torch.zeros(B, T, dtype=torch.long), torch.arange(1, T + 1)[None].expand(B, T).contiguous()
KEEP = torch.arange(T)[None] >= torch.tensor([[0], [2]])
RUNS = torch.arange(T)[None].expand(B, T).contiguous() // 4
SERIES = [1.0, 1.0, 0.5]

CASES = {
    "flash": (_flash, lambda: (x(B, H, T, D), x(B, 1, T, D), x(B, 1, T, D), None, None, None, True, 0.5)),
    "flash, heads last": (_flash, lambda: (*(heads_last(B, H, T, D) for _ in range(3)), KEEP, None, None, True, 0.5)),
    "flash, tiles": (_flash, lambda: (x(B, H, T, D), x(B, H, T, D), x(B, H, T, D), KEEP, LO, HI, True, 0.5)),
    "tiled": (_tiled, lambda: (x(B, H, T, D), x(B, T, D), x(B, T, 3), None, None, True, SERIES, None)),
    "tiled, bounds": (_tiled, lambda: (x(B, H, T, D), x(B, T, D), x(B, T, 3), LO, HI, True, [], 5.0)),
    "chunked": (
        _chunked,
        lambda: (x(B, H, 8, D), x(B, 8, D), x(B, 8, 3), x(B, 15, 3), RUNS[:, :8].contiguous(), SERIES, 4),
    ),
    "write": (_write, lambda: (x(B, T, D), x(B, T, 3), SERIES)),
    "read": (_read, lambda: (x(B, T, D), x(B, 15, 3), SERIES)),
    "l2": (_l2, lambda: (x(B, H, T, D),)),
    "l2, heads last": (_l2, lambda: (heads_last(B, H, T, D),)),
    "elu + 1": (_elu_plus_one, lambda: (x(B, H, T, D),)),
    "elu + 1, heads last": (_elu_plus_one, lambda: (heads_last(B, H, T, D),)),
    "divide": (_divide, lambda: (x(B, H, T, D), (x(B, H, T, 1).detach() + 5).requires_grad_())),
    "symmetric powers": (_symmetric_powers, lambda: (x(T, D), [0, 1, 3])),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_opcheck(case):
    op, arguments = CASES[case]
    torch.library.opcheck(op, arguments())
