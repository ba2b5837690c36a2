"""The cost model behind form="auto" and explain()."""

import torch

import softmax_rnn as sr


def test_explain_says_what_auto_does():
    e = sr.explain("taylor2", 1, 8, 16384, 16, 64)
    assert e.choice == "chunked"
    assert {c.form for c in e.costs} == {"parallel", "chunked", "recurrent"}
    assert "<- auto" in str(e)
    assert f"from T = {e.break_even:,}" in str(e)


def test_explain_says_which_backend_computes_and_why_not_the_others():
    said = str(sr.explain("fox", 1, 2, 64, 48, 48))
    assert "sdpa (torch) is not used: the log-sum-exp, a cap, a decay or a bias is needed" in said
    assert "parallel is computed by " in said
    for name in sr.mechanisms():
        assert str(sr.explain(name, 1, 2, 2**20, 16, 24)).count("parallel is computed by ") == 1


def test_break_even_is_where_the_choice_changes():
    e = sr.explain("taylor2", 2, 4, 100, 8, 8)
    assert sr.explain("taylor2", 2, 4, e.break_even, 8, 8).choice == "chunked"
    assert sr.explain("taylor2", 2, 4, e.break_even - 1, 8, 8).choice == "parallel"


def test_exp_has_one_form():
    e = sr.explain("softmax", 1, 8, 2**20, 64, 64)
    assert e.choice == "parallel"
    assert e.break_even is None
    assert "no recurrent state of constant size" in str(e)


def test_a_state_too_large_to_win():
    assert sr.explain("taylor10", 1, 8, 4096, 64, 64).choice == "parallel"


def test_declared_state_is_the_real_state():
    for name in ("taylor2", "taylor3_norm", "linear_elu", "linear"):
        x = torch.zeros(2, 3, 5, 4)
        _, state = sr.attention(x, x, x, name, return_state=True)
        (chunked,) = (c for c in sr.explain(name, 2, 3, 5, 4, 4).costs if c.form == "chunked")
        assert chunked.state_bytes == state.moments.numel() * 4
