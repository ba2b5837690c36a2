"""docs/extending.md: a slot of one's own, in one file, everywhere: attention, the layer, save and load, YAML and the command line."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn import cli

DOCS = Path(__file__).parents[2] / "docs/extending.md"


@pytest.fixture
def my_sink(tmp_path, monkeypatch):
    code = re.search(r"<!-- my_sink.py -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) <= 30
    (tmp_path / "my_sink.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_sink", None)
    from softmax_rnn.slots.presets import REGISTERED

    REGISTERED.pop("sunk", None)


def test_found_by_its_import_path(my_sink):
    data = {"kernel": {"type": "Exp"}, "denominator": {"type": "my_sink.Sunk"}}
    m = sr.Mechanism.from_dict(data)
    assert m.to_dict()["denominator"] == {"type": "my_sink.Sunk"}
    assert m.parameters == ("my_sink",)
    with pytest.raises(sr.MechanismError, match="cannot be imported"):
        sr.Mechanism.from_dict({**data, "denominator": {"type": "no_such_module.Sunk"}})
    with pytest.raises(sr.MechanismError, match="needs my_sink= of shape"):
        sr.attention(*torch.randn(3, 1, 2, 4, 4).unbind(), m)


def test_in_a_model(my_sink, tmp_path):
    from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

    mechanism = {"kernel": {"type": "Exp"}, "denominator": {"type": "my_sink.Sunk"}}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(vocab_size=50, mechanism=mechanism, **sizes))
    ids = torch.randint(3, 50, (1, 9))
    model(ids, labels=ids).loss.backward()
    sink = model.model.layers[0].self_attn.my_sink
    assert sink.grad.abs().sum() > 0
    torch.nn.init.constant_(sink, 2.0)
    model.save_pretrained(tmp_path / "model")
    again = SoftmaxRnnForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert (again.model.layers[0].self_attn.my_sink == 2).all()


@pytest.mark.slow
def test_from_the_command_line(my_sink, monkeypatch):
    (my_sink / "run.yaml").write_text(
        "plugins: [my_sink]\nmodel:\n  mechanism: {kernel: {type: Exp}, denominator: {type: my_sink.Sunk}}\n"
    )
    words = ["train", "--preset", "tiny", "--train.steps", "2", "--run.folder"]
    command = [sys.executable, "-m", "softmax_rnn", *words, "one", "--config", "run.yaml"]
    done = subprocess.run(command, cwd=my_sink, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(my_sink)
    assert cli.main([*words, "two", "--plugins", "my_sink", "--model.mechanism", "sunk"]) == 0


def test_an_incomplete_form_is_refused_when_it_is_made():
    from softmax_rnn.forms.reference import Form

    class Lazy(Form):
        name = "lazy"

        def cost(self, s):
            return None

    with pytest.raises(TypeError, match="run"):
        Lazy()


def test_an_incomplete_slot_is_refused_when_it_is_made(tmp_path, monkeypatch):
    code = "import softmax_rnn as sr\n\nclass Half(sr.Denominator):\n    def text(self):\n        return 'half'\n"
    (tmp_path / "half_made.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    from half_made import Half

    with pytest.raises(TypeError, match="divide"):
        Half()
    with pytest.raises(sr.MechanismError, match="a denominator needs the method divide"):
        sr.Mechanism.from_dict({"kernel": {"type": "Exp"}, "denominator": {"type": "half_made.Half"}})
    sys.modules.pop("half_made")


def test_a_feature_map_and_a_norm_need_no_more_than_apply():
    @dataclass(frozen=True)
    class Squared(sr.FeatureMap):
        def apply(self, x, positions):
            return x.square()

    @dataclass(frozen=True)
    class Largest(sr.Norm):
        def apply(self, x, **inputs):
            return x / x.abs().amax(-1, keepdim=True)

    m = sr.Mechanism(sr.Linear(Squared()), sr.Unnormalised(), norm=Largest())
    assert str(m) == "largest( Σ squared(q)·squared(k) v )"
    q, k, v = torch.randn(3, 1, 2, 9, 4).unbind()
    want = sr.attention(q, k, v, m, form="reference")
    assert want.abs().amax(-1).allclose(torch.ones(1, 2, 9))
    torch.testing.assert_close(sr.attention(q, k, v, m, form="chunked"), want)
