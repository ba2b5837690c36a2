"""The package as installed: light to import, a command line that answers, examples in docstrings that run."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import softmax_rnn as sr
from softmax_rnn.cli import COMMANDS, main

MODULES = [m.name for m in pkgutil.walk_packages(sr.__path__, "softmax_rnn.") if "__main__" not in m.name]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    import torch

    torch.manual_seed(0)
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_importing_needs_torch_alone():
    heavy = "('transformers', 'datasets', 'matplotlib', 'rich')"
    code = f"import softmax_rnn as sr, sys; sr.attention; print([m for m in {heavy} if m in sys.modules])"
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "names"),
    {  # that docs, examples and tests of the first edition import
        "denominators": "Denominator Length Sum",
        "features": "symmetric_dim symmetric_power",
        "kernels": "Kernel Exp Taylor",
        "norms": "NORMS l2",
        "presets": "PRESETS AUTHORS mechanism",
        "lab.checkpoint": "newest publish",
        "lab.recipes": "RECIPES recipe paper",
        "lab.store": "find_runs runs_table tidy",
        "lab.tokens": "Tokens open_tokens write_tokens",
        "microscope.centers": "save_centers",
        "microscope.command": "main",
        "microscope.quality": "SETTLED",
        "microscope.saving": "load save",
        "microscope.series": "ladder largest_term last_useful partial_sums tail_ratio",
        "microscope.states": "cache_bytes state_bytes",
        "microscope.truncate": "truncated",
        "models.authors": "TYPES WHY_NOT",
        "models.loading": "load_model load_tokenizer smollm2_path",
        "models.sizes": "SIZES parameter_count",
        "paper.catalog": "FIGURES of_scale",
        "paper.estimate": "GPUS cost",
        "paper.headline": "finals main_curves",
        "paper.reproduce": "main plan",
        "paper.scales": "SCALES Cell Scale",
        "report.command": "main",
        "report.glyph": "glyph measured region_words",
    }.items(),
)
def test_modules_of_the_first_edition_are_found(module, names):
    found = importlib.import_module(f"softmax_rnn.{module}")
    assert all(hasattr(found, name) for name in names.split())
    assert found.__spec__.name == found.__name__  # where it is now


def test_help_does_not_import_torch():
    code = "import sys; from softmax_rnn.cli import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith("False")


def test_a_missing_package_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "train", ("a_package_that_is_not_there", ""))
    assert main(["train"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_does_not_import_torch(command):
    code = f"""
import sys
from softmax_rnn.cli import main
try:
    main([{command!r}, "--help"])
except SystemExit:
    pass
print([m for m in ("torch", "transformers", "datasets") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]")


def test_help_names_every_command(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"softmax-rnn {sr.__version__}\n"


def test_an_unknown_command_is_one_line_and_code_2(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_public_names():
    assert sr.__all__ == sorted(sr.__all__)
    for name in sr.__all__:
        assert name in dir(sr)
    with pytest.raises(AttributeError, match="no attribute 'attend'"):
        sr.attend  # noqa: B018


def test_list_shows_every_preset(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in sr.mechanisms())


def test_list_shows_sizes(capsys):
    assert main(["list", "--sizes"]) == 0
    out = capsys.readouterr().out
    assert "small" in out
    assert "large" in out


def test_list_without_runs(capsys, tmp_path):
    assert main(["list", "--runs", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out
