"""``sdpa`` takes what torch's function takes."""

import pytest
import torch
import torch.nn.functional as F

import softmax_rnn as sr

Q, K, V = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
KEEP = torch.arange(6)[None] < torch.tensor([[6], [4]])
TRIL = torch.ones(6, 6, dtype=torch.bool).tril()
MASKS = {
    "none": None,
    "padding": KEEP[:, None, None],
    "padding, every query": KEEP[:, None, None].expand(2, 1, 6, 6),
    "causal": TRIL,
    "causal, added": torch.zeros(6, 6, dtype=torch.float64).masked_fill(~TRIL, -torch.inf),
    "causal padding": TRIL & KEEP[:, None, None],
    "lowest number": torch.zeros(2, 1, 1, 6, dtype=torch.float64).masked_fill(
        ~KEEP[:, None, None], torch.finfo(torch.float64).min
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_softmax_is_torchs_own(name):
    mask = MASKS[name]
    want = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
    torch.testing.assert_close(sr.sdpa(Q, K, V, mask, mechanism="softmax"), want)


def test_options():
    torch.testing.assert_close(
        sr.sdpa(Q, K[:, :2], V[:, :2], is_causal=True, scale=0.3, enable_gqa=True, mechanism="softmax"),
        F.scaled_dot_product_attention(Q, K[:, :2], V[:, :2], is_causal=True, scale=0.3, enable_gqa=True),
    )
    torch.testing.assert_close(
        sr.sdpa(Q[:, 0], K[:, 0], V[:, 0], mechanism="softmax"),
        F.scaled_dot_product_attention(Q[:, 0], K[:, 0], V[:, 0]),
    )
    torch.testing.assert_close(sr.sdpa(Q, K, V, is_causal=True), sr.attention(Q, K, V, "norm"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dropout_p": 0.1}, "no dropout"),
        ({"attn_mask": torch.rand(6, 6, dtype=torch.float64)}, "other than 0 and -inf"),
        ({"attn_mask": torch.eye(6, dtype=torch.bool)}, "neither padding nor causal"),
        ({"attn_mask": TRIL, "is_causal": True}, "not both"),
        ({"attn_mask": torch.ones(5, dtype=torch.bool)}, "must broadcast"),
        ({"k": K[:, :2], "v": V[:, :2]}, "enable_gqa"),
        ({"k": K[:, :, :3], "v": V[:, :, :3], "is_causal": True}, "as many queries as keys"),
    ],
)
def test_one_sentence(arguments, words):
    with pytest.raises(sr.MechanismError, match=words):
        sr.sdpa(**{"q": Q, "k": K, "v": V, **arguments})


@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_queries_without_four_axes(lead, causal):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*lead, 6, 4, generator=g) for _ in range(3))
    mask = torch.rand(*lead, 1, 6, generator=g) > 0.4
    mask[..., 0] = True
    mask = mask & torch.ones(6, 6, dtype=torch.bool).tril() if causal else mask
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(sr.sdpa(q, k, v, attn_mask=mask, mechanism="softmax"), want)
    with pytest.raises(sr.MechanismError, match="attn_mask must broadcast to"):
        sr.sdpa(q, k, v, attn_mask=mask[..., :5], mechanism="softmax")


def test_a_causal_mask_of_one_token():
    q = torch.randn(1, 1, 1, 4, generator=torch.Generator().manual_seed(0))
    one, zero = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, 1)
    torch.testing.assert_close(sr.sdpa(q, q, q, attn_mask=one, mechanism="fox", log_decay=zero), q)


def test_torchs_names():
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    assert torch.equal(sr.sdpa(query=q, key=k, value=v, is_causal=True), sr.attention(q, k, v, "norm"))
    assert torch.equal(sr.sdpa(q=q, k=k, v=v), sr.sdpa(q, k, v))
