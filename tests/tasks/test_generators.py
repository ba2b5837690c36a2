"""Every task against a slow reader of its own that knows the rules: each row says what it should, and asks where it should."""

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import softmax_rnn as sr
from softmax_rnn.tasks import NOTHING, TASKS, task
from softmax_rnn.tasks.sequences import load_images

GENERATED = [name for name in TASKS if name != "digits"]


def rows(text, length=None, count=40, seed=0):
    made = task(text)
    tokens, answers = made.generate(count, length or made.length, seed)
    return made, tokens.tolist(), answers.tolist()


@pytest.mark.parametrize("name", GENERATED)
def test_what_all_tasks_have_in_common(name):
    made = task(name)
    tokens, answers = made.generate(1500, made.length, 1)  # more than one block
    assert tokens.shape == answers.shape == (1500, made.length)
    assert 0 <= tokens.min() <= tokens.max() < made.vocabulary
    asked = answers != NOTHING
    assert asked.any(1).all()
    assert not asked[:, -1].any()
    assert 0 <= answers[asked].min() <= answers[asked].max() < made.vocabulary
    fewer = made.generate(1100, made.length, 1)
    assert np.array_equal(fewer[0], tokens[:1100])  # row i is the same however many there are
    assert np.array_equal(fewer[1], answers[:1100])
    assert not np.array_equal(made.generate(1500, made.length, 2)[0], tokens)
    assert len(np.unique(tokens, axis=0)) > 1490
    assert "arXiv" in made.published
    assert name in made.check.__self__.name


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_every_length_from_the_shortest_on(name, factor):
    made = task(name)
    for length in (made.shortest, made.shortest + 1, factor * made.length):
        tokens, answers = made.generate(8, length, 0)
        assert tokens.shape == (8, length)
        assert (answers != NOTHING).any()
    with pytest.raises(sr.UserError, match=f"needs rows of at least {made.shortest} tokens, got {made.shortest - 1}"):
        made.generate(8, made.shortest - 1, 0)


@pytest.mark.parametrize("text", ["mqar", "mqar,pairs=16", "forgetting", "forgetting,pairs=10,reassigned=8"])
def test_recall_of_pairs(text):
    made, tokens, answers = rows(text)
    for row, asked in zip(tokens, answers, strict=True):
        newest = dict(zip(row[0 : 2 * made.pairs : 2], row[1 : 2 * made.pairs : 2], strict=True))
        assert len(newest) == made.keys
        assert all(key < 128 <= value for key, value in newest.items())
        where = [t for t, a in enumerate(asked) if a != NOTHING]
        assert sorted(row[t] for t in where) == sorted(newest)  # every key once
        assert min(where) >= 2 * made.pairs
        assert all(asked[t] == newest[row[t]] for t in where)


def test_queries_come_early_and_some_late():
    made = task("mqar,pairs=4")
    _, answers = made.generate(4000, 256, 0)
    distance = (np.nonzero(answers != NOTHING)[1] - 8) // 2
    assert np.median(distance) < 30 < 110 < distance.max()
    _, answers = task("mqar,pairs=4,power=1").generate(4000, 256, 0)
    assert abs(np.median((np.nonzero(answers != NOTHING)[1] - 8) // 2) - 62) < 4


def words(row, ends):
    """The row cut after every token of ``ends``."""
    found, word = [], []
    for token in row:
        word.append(token)
        if token in ends:
            found.append(tuple(word))
            word = []
    return found


@pytest.mark.parametrize("text", ["fuzzy", "fuzzy,pairs=20,vocab=3", "noisy", "noisy,noise=0.6"])
def test_recall_in_a_stream(text):
    made, tokens, answers = rows(text, length=400)
    v = made.vocab
    for row, asked in zip(tokens, answers, strict=True):
        clean = [(t, token) for t, token in enumerate(row) if token < 4 * v]
        parts = words([token for _, token in clean], {*range(v, 2 * v), *range(3 * v, 4 * v)})
        assert abs(1 - len(clean) / len(row) - made.noise / (2 - made.noise)) < 0.2
        keys, values = parts[0::2], parts[1::2]
        assert all(token < 2 * v for key in keys for token in key)
        assert all(token >= 2 * v for value in values for token in value)
        known, expected, place = {}, [NOTHING] * len(row), 0
        for key, value in itertools.zip_longest(keys, values, fillvalue=()):
            assert not value or known.get(key, value) == value
            place += len(key)
            for token in value:
                if key in known:
                    expected[clean[place - 1][0]] = token
                place += 1
            known[key] = value
        assert len(known) <= made.pairs
        tail = len(row) - 8  # the last pair may be cut off
        assert asked[:tail] == expected[:tail]


def test_keys_of_a_row_share_their_ends():
    _, tokens, _ = rows("fuzzy", length=400)
    shared = sum(len({k for k in words(row, range(4, 16)) if k[-1] == 4}) > 1 for row in tokens)
    assert shared > 20


def test_selective_copy():
    made, tokens, answers = rows("copy")
    for row, asked in zip(tokens, answers, strict=True):
        content = [t for t in row if t < made.vocab]
        assert len(content) == made.tokens
        assert [a for a in asked if a != NOTHING] == content
        bars = [t for t, token in enumerate(row) if token == made.vocab + 1]
        assert [t for t, a in enumerate(asked) if a != NOTHING] == bars[:-1]


def test_parity():
    _, tokens, answers = rows("parity")
    for row, asked in zip(tokens, answers, strict=True):
        assert asked[:-1] == [sum(row[: t + 1]) % 2 for t in range(len(row) - 1)]


def test_s3():
    group = list(itertools.permutations(range(3)))
    _, tokens, answers = rows("s3")
    for row, asked in zip(tokens, answers, strict=True):
        state = (0, 1, 2)
        for t in range(len(row) - 1):
            state = tuple(group[row[t]][i] for i in state)
            assert group[asked[t]] == state


@pytest.mark.parametrize("text", ["ngrams", "ngrams,n=3,vocab=4"])
def test_counting_solves_ngrams_up_to_the_ceiling(text):
    made, tokens, answers = rows(text, length=512, count=200)
    n, right, total = made.n - 1, 0, 0
    for row, asked in zip(tokens, answers, strict=True):
        counts = {}
        for t in range(n, len(row)):
            seen = counts.setdefault(tuple(row[t - n : t]), {})
            if asked[t - 1] != NOTHING:
                assert asked[t - 1] == row[t]
                right += max(seen, key=seen.get, default=-1) == row[t]
                total += 1
            seen[row[t]] = seen.get(row[t], 0) + 1
    assert total == 200 * 255
    assert made.ceiling(512) - 0.04 < right / total < made.ceiling(512) + 0.02


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mqra", "did you mean mqar?"),
        ("", "known are mqar"),
        ("mqar,pears=3", "no size 'pears'; it has rows, test_rows, pairs, vocab, power"),
        ("mqar,pairs=many", "needs a whole number for pairs, got 'many'"),
        ("mqar,pairs=0", "needs pairs from 1 to 65,536, got 0"),
        ("mqar,pairs=9999999", "needs pairs from"),
        ("mqar,pairs=129", "129 keys in a row, and a vocabulary of 256 has only 128 keys"),
        ("mqar,power=nan", "needs power above 0"),
        ("forgetting,pairs=4,reassigned=4", "at least one must be the first"),
        ("fuzzy,pairs=100", "only 84 different keys"),
        ("fuzzy,vocab=100", "more than 16,384 words"),
        ("noisy,noise=1", "at least 0 and below 1"),
        ("noisy,pairs=17", "only 16 different keys"),
        ("ngrams,n=9", "make one of them smaller"),
        ("ngrams,concentration=0", "concentration above 0"),
        ("copy,tokens=1.5", "needs a whole number"),
    ],
)
def test_bad_sizes_are_one_sentence(text, said):
    with pytest.raises(sr.UserError) as caught:
        task(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.sampled_from(sorted(TASKS)),
    st.dictionaries(st.sampled_from(["pairs", "vocab", "n", "tokens"]), st.integers(-2, 300)),
)
def test_any_sizes_are_rows_or_a_sentence(name, sizes):
    text = ",".join([name, *(f"{k}={v}" for k, v in sizes.items())])
    try:
        made = task(text)
    except sr.UserError:
        return
    if made.shortest <= 256:
        tokens, _ = made.generate(2, made.shortest, 0)
        assert tokens.max() < made.vocabulary


@pytest.mark.parametrize(("patches", "levels"), [(64, 17), (16, 65)])
def test_digits_are_images_and_their_classes(patches, levels):
    made = task(f"digits,patches={patches}")
    tokens, answers = made.generate(1437, patches + 1, 0, 0)
    images, classes = load_images()
    order = np.random.default_rng(0).permutation(1797)[:1437]
    assert np.array_equal(tokens[:, :-1].sum(1), images[order].sum((1, 2)))  # no pixel is lost
    assert np.array_equal(answers[:, -1] - levels, classes[order])
    assert (answers[:, :-1] == NOTHING).all()
    assert (tokens[:, -1] == made.vocabulary - 1).all()
    assert tokens[:, :-1].max() < levels
    if patches == 64:
        assert np.array_equal(tokens[0, :-1].reshape(8, 8), images[order[0]])
    test = made.generate(360, patches + 1, 0, 1)[0]
    assert len(test) == 360
    assert not {row.tobytes() for row in made.generate(1437, patches + 1, 0, 0)[0]} & {row.tobytes() for row in test}


@pytest.mark.parametrize(
    ("text", "length", "said"),
    [
        ("digits,patches=9", 65, "16 or 64 patches, got 9"),
        ("digits,rows=1700", 65, "1,797 images"),
        ("digits", 64, "rows of 65 tokens, got 64"),
    ],
)
def test_digits_that_do_not_fit(text, length, said):
    with pytest.raises(sr.UserError, match=said):
        task(text).generate(2, length, 0)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    load_images.cache_clear()
    with pytest.raises(sr.UserError, match=r"pip install 'softmax-rnn\[digits\]'"):
        task("digits").generate(2, 65, 0)
    load_images.cache_clear()
