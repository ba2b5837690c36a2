"""Help in plain words, and one style of options."""

from __future__ import annotations

import re

import pytest

from softmax_rnn.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert not re.search(r"`|:\w+:`|>>>|\*\*|\.\. \w+::", text)  # neither RST nor Markdown
    assert not re.search(r"\b(this one|that one|the other one|instead)\s*(\n|$|\()", text)  # says what is meant
    options = set(re.findall(r"(?<![\w.])--[\w.-]+", text)) - {"--print_config"}
    assert [o for o in options if "_" in o and "." not in o] == []  # dotted keys are configuration, others have hyphens


def test_flags_need_no_value() -> None:
    from softmax_rnn.lab.config import parse

    assert parse(["--preset", "tiny", "--run.sharded"]).run.sharded
    assert not parse(["--preset", "tiny", "--run.sharded", "false"]).run.sharded
    assert parse(["--preset=tiny", "--run.sharded", "--seed=3"]).seed == 3
    assert parse(["--model.overrides.num_hidden_layers", "3"]).model.overrides == {"num_hidden_layers": 3}
    assert parse(["--train", "{steps: 7}"]).train.steps == 7
    assert parse(["--train.steps", "1e3"]).train.steps == 1000
