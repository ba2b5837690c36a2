"""docs/microscope.md says what results/microscope says: its tables are made from there (tools/readme.py), and its words keep to them."""

import re
from pathlib import Path

import pytest

from softmax_rnn.microscope.results import compare, folders, load

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results/microscope", ROOT / "docs/microscope.md"
GIVEN = {"0.01", "0.001", "4.4"}  # the two tolerances of the command, and a section of the paper


@pytest.fixture(scope="module")
def generated() -> str:
    return compare({folder.name: load(folder) for folder in folders([RESULTS])})


def words() -> str:
    text = PAGE.read_text()
    return text[text.index("## What was found") : text.index("<!-- inspections -->")]


def test_decimals_in_the_words_are_in_the_tables(generated: str) -> None:
    shown = [abs(float(n)) for n in re.findall(r"-?\d+\.\d+", generated)]
    for number in set(re.findall(r"\d+\.\d+", words())) - GIVEN:
        digits = len(number.split(".")[1])
        assert any(abs(n - float(number)) <= 0.5001 * 10**-digits for n in shown), f"{number} is in no table"


def test_ranges_in_the_words_are_in_the_tables(generated: str) -> None:
    shown = {round(float(n)) for n in re.findall(r"-?\d+\.\d+", generated)}
    for pair in re.findall(r"(?:from|between) (-?\d+) (?:to|and) (-?\d+)", words()):
        assert {int(n) for n in pair} <= shown, f"{pair} is in no table"


def test_orders_in_the_words_are_in_the_tables(generated: str) -> None:
    cells = set(re.findall(r"(?<=\| )(?:more than )?(\d+)(?= \|)", generated))
    for order in set(re.findall(r"\border (\d+)", words())):
        assert order in cells, f"order {order} is in no table"
