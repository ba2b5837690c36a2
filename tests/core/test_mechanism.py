"""Mechanisms as values: frozen, checked, written and read, named."""

import dataclasses
import json
import pickle
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import softmax_rnn as sr
from softmax_rnn.slots.presets import AUTHORS

from .problems import NAMES

kernels = st.one_of(
    st.builds(sr.Exp, clamp=st.none() | st.floats(-5, 10)),
    st.builds(sr.Taylor, st.integers(0, 12)),
    st.builds(sr.Power, st.integers(0, 12)),
    st.builds(
        sr.Linear, st.sampled_from(["identity", "elu", "relu", "cosine"]), st.none() | st.integers(0, 9), st.booleans(),
        st.none() | st.floats(0.1, 9),
    ),
)  # fmt: skip
denominators = st.one_of(
    st.builds(sr.Sum, st.none() | st.floats(0.1, 2), st.booleans(), st.floats(0, 1)),
    st.builds(sr.Length, st.booleans()),
    st.just(sr.Unnormalised()),
)


@given(
    kernels,
    denominators,
    st.booleans(),
    st.sampled_from([None, "before_norm", "after_norm"]),
    st.sampled_from([None, "l2", "rms", "layer"]),
)
def test_round_trip_through_json(kernel, denominator, input_gate, output_gate, norm):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sr.MechanismWarning)
        m = sr.Mechanism(kernel, denominator, input_gate, output_gate, norm, allow_signed=True)
        again = sr.Mechanism.from_dict(json.loads(json.dumps(m.to_dict())))
        assert pickle.loads(pickle.dumps(m)) == m
    assert again == m
    assert hash(again) == hash(m)
    assert str(again) == str(m)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        sr.mechanism("softmax").norm = "l2"
    with pytest.raises(dataclasses.FrozenInstanceError):
        sr.Taylor(2).order = 3


def test_every_name_has_its_own_text():
    texts = {str(sr.mechanism(n)) for n in NAMES}
    assert len(texts) == len(NAMES)
    assert str(sr.mechanism("gate")) == "g_out · Σ exp(min(x, 5)) v / t"


@pytest.mark.parametrize("authors", AUTHORS)
def test_the_authors_names(authors):
    assert sr.mechanism(authors) == sr.mechanism(AUTHORS[authors])


def test_the_authors_names_that_are_ours_too():
    for name in ("softmax", "linear_elu", "linear_relu", "linear_cosine"):
        assert sr.mechanism(name) == sr.mechanisms()[name]
    eighty = sr.mechanism("softmax_taylor_80terms")
    assert (eighty.kernel, eighty.denominator) == (sr.Taylor(79), sr.Sum())


@pytest.mark.parametrize("n", [0, 1, 2, 7, 10])
def test_families(n):
    assert sr.mechanism(f"taylor{n}_norm") == sr.Mechanism(sr.Taylor(n), sr.Unnormalised(), norm="l2")
    for family in ("elu", "relu", "cosine"):
        assert sr.mechanism(f"{family}{n}") == sr.Mechanism(sr.Linear(family, order=n), sr.Sum())
        assert sr.mechanism(f"{family}{n}_norm") == sr.Mechanism(
            sr.Linear(family, order=n), sr.Unnormalised(), norm="l2"
        )


@pytest.mark.parametrize(
    ("name", "near"),
    [("softmx", "softmax"), ("nrom", "norm"), ("taylor_2", "taylor2"), ("gated_softmx", "gated_softmax")],
)
def test_an_unknown_name_lists_near_matches(name, near):
    with pytest.raises(sr.MechanismError, match=near):
        sr.mechanism(name)


@pytest.mark.parametrize("name", ["zzzzz", "taylor", "taylor-1", "", "elu2_layer"])
def test_other_unknown_names(name):
    with pytest.raises(sr.MechanismError, match="Unknown mechanism"):
        sr.mechanism(name)


@pytest.mark.parametrize(
    "kernel",
    [
        sr.Taylor(3),
        sr.Power(1),
        sr.Power(3),
        sr.Linear("identity"),
        sr.Linear("cosine"),
        sr.Linear("identity", order=5),
    ],
)
def test_signed_weights_and_a_sum_are_refused(kernel):
    with pytest.raises(sr.MechanismError, match="even order"):
        sr.Mechanism(kernel, sr.Sum())
    sr.Mechanism(kernel, sr.Sum(), allow_signed=True)
    sr.Mechanism(kernel, sr.Unnormalised(), norm="l2")
    sr.Mechanism(kernel, sr.Length())


@pytest.mark.parametrize(
    "kernel",
    [sr.Taylor(2), sr.Power(2), sr.Linear("elu", order=3), sr.Linear("relu", order=1), sr.Linear("cosine", order=3)],
)
def test_unsigned_weights_and_a_sum_are_fine(kernel):
    sr.Mechanism(kernel, sr.Sum())


def test_what_cancels_warns():
    with pytest.warns(sr.MechanismWarning, match="before the l2 norm cancels"):
        sr.Mechanism(sr.Exp(), sr.Length(), output_gate="before_norm", norm="l2")
    with pytest.warns(sr.MechanismWarning, match="length exponent"):
        sr.Mechanism(sr.Linear("cosine"), sr.Length(learned=True), norm="rms")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sr.Taylor(-1), "Taylor order must be a whole number from 0 to 150, got -1"),
        (lambda: sr.Power(200), "got 200"),
        (lambda: sr.Exp(clamp=True), "got True"),
        (lambda: sr.Linear([]), "got []"),
        (lambda: sr.Linear("elu", scaled="no"), "got 'no'"),
        (lambda: sr.Sum(min="1"), "got '1'"),
        (lambda: sr.Sum(eps=None), "got None"),
        (lambda: sr.Sum(detach="yes"), "got 'yes'"),
        (lambda: sr.Length("yes"), "got 'yes'"),
        (lambda: sr.Mechanism(sr.Exp(), sr.Sum(), norm=["l2"]), "got ['l2']"),
        (
            lambda: sr.Mechanism.from_dict({"kernel": {"type": []}, "denominator": {"type": "Sum"}}),
            "must be a dict with a 'type'",
        ),
        (lambda: sr.Taylor(2.0), "got 2.0"),
        (lambda: sr.Power(True), "got True"),
        (lambda: sr.Linear("tanh"), "identity, elu, relu, cosine, exp, softmax, relu2 or a FeatureMap, got 'tanh'"),
        (lambda: sr.Linear("elu", order=-3), "got -3"),
        (lambda: sr.Linear("relu", clamp=0.0), "must be positive"),
        (lambda: sr.Exp(clamp=float("nan")), "finite"),
        (lambda: sr.Exp(clamp="5"), "finite number or None, got '5'"),
        (lambda: sr.Sum(min=-1.0), "positive"),
        (lambda: sr.Sum(eps=-1.0), ">= 0"),
        (lambda: sr.Mechanism("softmax", sr.Sum()), "kernel must be"),
        (lambda: sr.Mechanism(sr.Exp(), None), "denominator must be"),
        (lambda: sr.Mechanism(sr.Exp(), sr.Sum(), norm="l3"), "got 'l3'"),
        (lambda: sr.Mechanism(sr.Exp(), sr.Sum(), output_gate=True), "got True"),
        (lambda: sr.Mechanism(sr.Exp(), sr.Sum(), input_gate="yes"), "True or False"),
        (lambda: sr.mechanism(3), "a name or a Mechanism"),
        (lambda: sr.Mechanism.from_dict([1]), "read from a dict"),
        (lambda: sr.Mechanism.from_dict({"kernel": {"type": "Exp"}}), "needs a denominator"),
        (
            lambda: sr.Mechanism.from_dict({"kernel": {"type": "Exq"}, "denominator": {"type": "Sum"}}),
            "Unknown kernel type 'Exq'",
        ),
        (lambda: sr.Mechanism.from_dict({"kernel": "Exp", "denominator": {"type": "Sum"}}), "dict with a 'type'"),
        (lambda: sr.Mechanism.from_dict({"kernel": {"type": "Taylor"}, "denominator": {"type": "Sum"}}), "incomplete"),
        (
            lambda: sr.Mechanism.from_dict({"kernel": {"type": "Exp", "clmp": 5}, "denominator": {"type": "Sum"}}),
            "Unknown key 'clmp'",
        ),
    ],
)
def test_errors_are_one_clear_sentence(make, words):
    with pytest.raises(sr.MechanismError) as error:
        make()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mechanism_error_is_a_value_error():
    assert issubclass(sr.MechanismError, ValueError)


def test_near_says_why_it_has_neither_decay_nor_the_delta_rule():
    near = sr.mechanism("near2")
    with pytest.raises(sr.MechanismError, match="Near has no decay: it is for far keys"):
        dataclasses.replace(near, decay="token")
    with pytest.raises(sr.MechanismError, match="Near has no delta rule: near weights are kept as exponents"):
        dataclasses.replace(near, denominator=sr.Unnormalised(), norm="l2", update="delta")
