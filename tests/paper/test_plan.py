"""The plan: which runs a figure needs at which scale, and what they would cost."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import softmax_rnn as sr
from softmax_rnn import cli
from softmax_rnn.lab.train import micro_batch
from softmax_rnn.models import parameter_count
from softmax_rnn.paper import GPUS, cost, plan, read_options
from softmax_rnn.paper.figures import FIGURES, of_scale
from softmax_rnn.paper.results import command
from softmax_rnn.paper.scales import BASE, CHANGES, LARGE, LONG, SCALES, Cell, mechanism_of
from softmax_rnn.paper.summary import LOOK, color, dash, label


@pytest.mark.parametrize("name", SCALES)
def test_shared_runs_run_once(name: str) -> None:
    scale = SCALES[name]
    figures = ["quick"] if name == "quick" else [figure.name for figure in of_scale(scale)]
    whole = plan("quick" if name == "quick" else "all", scale, 2)
    assert len(whole) == len(set(whole)) == len({scale.config(cell, Path("x")).folder for cell in whole})
    assert set(whole) == {cell for figure in figures for cell in plan(figure, scale, 2)}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)
def test_every_mechanism_exists_and_has_a_name(figure) -> None:
    scale = SCALES["quick" if figure.name == "quick" else "cpu"]
    for panel in figure.panels(scale):
        assert len({label(name) for name in panel.mechanisms}) == len(panel.mechanisms)
        looks = [(color(name), dash(name)) for name in panel.mechanisms]
        assert len(set(looks)) == len(looks), panel.title  # no two curves look alike
        for name in panel.mechanisms:
            assert isinstance(mechanism_of(name), sr.Mechanism)
            assert name in LOOK or "order" in label(name)
            assert color(name).startswith("#")


def test_claims_have_names_of_their_own_and_need_only_planned_runs() -> None:
    scale = SCALES["cpu"]
    claims = [claim for figure in of_scale(scale) for claim in figure.claims]
    assert len({claim.name for claim in claims}) == len(claims) >= 18
    planned = set(plan("all", scale, 3))
    assert all(set(claim.cells(scale, range(3))) <= planned for claim in claims)


def test_the_documents_count_the_runs() -> None:
    document = (Path(__file__).parents[2] / "docs/paper.md").read_text()
    assert f"everything: {len(plan('all', SCALES['cpu'], 3))} runs" in document


def test_expanded_figures_need_no_further_runs() -> None:
    scale = SCALES["cpu"]
    assert set(plan("fig8", scale, 3)) <= set(plan("fig2", scale, 3))
    assert set(plan("fig9", scale, 3)) <= set(plan("fig6", scale, 3))


def test_the_papers_scale_is_appendix_d() -> None:
    scale = SCALES["paper"]
    base, large, long = (scale.config(Cell("norm", "pile", setting), Path("x")) for setting in (BASE, LARGE, LONG))
    assert [cost(c).parameters for c in (base, large, long)] == [
        parameter_count("small"),
        parameter_count("large"),
        parameter_count("small"),
    ]
    gated = replace(base, model=replace(base.model, mechanism="gate"))
    assert cost(gated).parameters == parameter_count("small", mechanism="gate") > parameter_count("small")
    assert (base.data.length, long.data.length, base.train.batch, base.train.steps) == (1024, 4096, 36, 100_000)
    assert {base.data.source, base.tokenizer.source} == {"pile", "meta-llama/Llama-2-7b-hf"}
    assert (base.train.lr, base.train.warmup, base.train.weight_decay, base.train.precision) == (
        1e-4,
        10_000,
        0.01,
        "bf16",
    )
    assert cost(base).tokens == 100_000 * 36 * 1024
    t = base.train
    assert (t.schedule_steps, t.beta1, t.beta2, t.clip, base.data.test_fraction) == (
        1_000_000,
        0.9,
        0.999,
        "gated",
        0.001,
    )
    for config, size in ((base, "base"), (large, "large"), (long, "long")):
        micro_batch(config, GPUS[size])  # refuses a batch that cannot be dealt out


def test_dry_runs_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "nothing"
    assert cli.main(["reproduce", "fig3", "--scale", "paper", "--seeds", "2", "--dry-run", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for part in (
        "torchrun --nproc-per-node 4 -m softmax_rnn train --preset paper-large --name norm-fineweb-large-0",
        "torchrun --nproc-per-node 6 -m softmax_rnn train --preset paper-long",
        f"softmax-rnn reproduce fig3 --scale paper --seeds 2 --out {out} --size large --slurm",
        "GPU hours",
        "275,293,184",
        "FLOPs",
    ):
        assert part in text
    assert cli.main(["reproduce", "all", "--dry-run", "--out", str(out)]) == 0
    assert "minutes on" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(("figure", "scale", "seeds"), [("quick", "quick", 2), ("all", "cpu", 5), ("fig3", "paper", 1)])
def test_printed_commands_can_be_typed(tmp_path: Path, figure: str, scale: str, seeds: int) -> None:
    words = shlex.split(command(figure, SCALES[scale], tmp_path / "with space", seeds))
    options = read_options(words[2:])
    assert (options.figure, options.scale.name, options.seeds) == (figure, scale, seeds)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["fig1"], "Unknown figure 'fig1'; figures are quick, fig2"),
        ([], "required: figure"),
        (["fig2", "--scale", "huge"], "invalid choice: 'huge'"),
        (["fig2", "--seeds", "0"], "--seeds: must be a whole number from 1 to 100"),
        (["fig2", "--jobs", "0"], "--jobs: must be a whole number from 1"),
        (["quick", "--scale", "paper"], "quick is a scale of its own"),
        (["fig2", "--scale", "paper"], "runs under torchrun or SLURM"),
        (["fig2", "--scale", "paper", "--slurm"], "--size base, large or long"),
        (["fig2", "--variant", "large"], "fig2 has no runs of the size large"),  # the option's first name
        (["stability", "--scale", "paper"], "has no figure 'stability'"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path, argv: list[str], says: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused("reproduce", *argv)
    assert not list(tmp_path.iterdir())


def test_changes_reach_the_model(tmp_path: Path) -> None:
    """What the norm experiment is about: clamps gone, and norms that start 1/√d or √d times as large."""
    scale = SCALES["cpu"]
    free = scale.config(Cell("rms_small_free", "sotu"), tmp_path).model
    assert free.value() == mechanism_of("rms_free") == sr.Mechanism(sr.Exp(), sr.Unnormalised(), norm="rms")
    assert free.overrides["norm_scale"] == 0.25
    large = scale.config(Cell("norm_large", "sotu"), tmp_path).model
    assert (large.mechanism, large.overrides["norm_scale"]) == ("norm", 4.0)
    assert all(name in LOOK for name in CHANGES)
    shape = {**scale.recipe("base").model.overrides, "vocab_size": 300}
    for config, size in ((free, 0.25), (large, 4.0)):
        settings = sr.SoftmaxRnnConfig(mechanism=config.mechanism, **shape, norm_scale=size)
        assert norm_of(sr.SoftmaxRnnForCausalLM(settings)) == size
    # And where the weights come from a model without that norm.
    sr.SoftmaxRnnForCausalLM(sr.SoftmaxRnnConfig(**shape)).save_pretrained(tmp_path / "softmax")
    loaded = sr.SoftmaxRnnForCausalLM.from_pretrained(tmp_path / "softmax", mechanism="layer", norm_scale=0.25)
    assert norm_of(loaded) == 0.25


def norm_of(model: sr.SoftmaxRnnForCausalLM) -> float:
    """How large the norm of the first layer starts."""
    layer = model.model.layers[0].self_attn
    weights = [parameter for name, parameter in layer.named_parameters() if name == "out_norm.weight"]
    return weights[0].detach()[3].item() if weights else layer.norm_factor
