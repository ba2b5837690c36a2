"""Graphs: one for a whole generation in a static cache, exported programs for every length, decode steps, traces."""

import itertools
import warnings

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import DynamicCache, StaticCache
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter
from transformers.generation.configuration_utils import CompileConfig
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

from softmax_rnn import Exp, Mechanism, MechanismError, Near, Sum, Taylor

RING = Mechanism(Near(Exp(), Taylor(2), window=4), Sum())  # full before the prompt is

# One of each kind, a layer each: flash, flash with lse, tiles, states; with and without gates, norms, exponents; a hybrid.
KINDS = [
    "softmax",
    ["norm", "length"],
    ["relu_gate", "in_out_gate_layer"],
    ["taylor2", "linear_cosine"],
    ["taylor2", "softmax"],
]
FADING = [["mamba2", "fox"], ["gated_deltanet", "delta_softmax"], ["wall", RING]]  # decay, the delta rule, a ring


def close(a, b):
    torch.testing.assert_close(a, b, atol=3e-5, rtol=1e-4)


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [*KINDS, *FADING, ["norm_decay", "softmax"]], ids=str)
def test_one_graph_for_a_generation(make, ids, left_padding, name):
    model = make(name)
    compile_config = CompileConfig(backend="eager", fullgraph=True, mode=None)
    compile_config._compile_all_devices = True
    options = {"attention_mask": left_padding, "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, use_cache=False, **options)
    static = {"cache_implementation": "static", "compile_config": compile_config}
    assert torch.equal(model.generate(ids, **options, **static), expected)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_static_cache_of_keys_does_not_forget_the_first(make, ids):
    model = make("fox")
    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + 1)
    model(ids, past_key_values=cache)
    model(ids[:, :1], past_key_values=cache)
    with pytest.raises(
        MechanismError, match=rf"has room for {ids.shape[1] + 1} tokens, and {ids.shape[1] + 2} have come"
    ):
        model(ids[:, :1], past_key_values=cache)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "padded"),
    [*itertools.product(["softmax", "taylor2"], [False]), *itertools.product([*KINDS, *FADING], [True])],
    ids=str,
)
def test_a_program_for_every_length(make, ids, left_padding, name, padded):
    model, tokens = make(name), torch.export.Dim("tokens", min=2)
    inputs = {"input_ids": ids} | ({"attention_mask": left_padding} if padded else {})
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, dynamic_shapes={key: {1: tokens} for key in inputs}).module()
        for length in (2, 3, 64, 200):
            inputs = {"input_ids": torch.randint(3, 48, (2, length))}
            real = torch.ones(2, length, dtype=torch.long)
            if padded:
                real[0, : length // 2] = 0
                inputs["attention_mask"] = real
            close(program(**inputs).logits[real.bool()], model(**inputs).logits[real.bool()])


@pytest.mark.parametrize("kind", [StaticCache, DynamicCache])
@pytest.mark.parametrize(
    "name",
    ["softmax", "relu_gate", "taylor2", ["linear_cosine", "norm"], ["fox", RING], ["mamba2", "delta_softmax"]],
    ids=str,
)
def test_a_decode_step_with_its_cache(make, ids, name, kind):
    model = make(name)

    def inputs():
        room = {"max_cache_len": 20} if kind is StaticCache else {}
        cache = kind(config=model.config, **room)
        model(ids[:, :-1], past_key_values=cache)
        return {"input_ids": ids[:, -1:], "past_key_values": cache}

    with torch.no_grad():
        program = DynamoExporter().export(model, inputs(), config=DynamoConfig()).module()
        close(program(**inputs())["logits"], model(ids).logits[:, -1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norm", ["taylor2", "linear_cosine"], ["fox", RING]], ids=str)
def test_a_decode_step_that_holds_its_cache(make, ids, name):
    """The recipe for phones: a program with its own static cache, called token by token."""
    model, ids = make(name), ids[:1]
    model.generation_config.cache_implementation = "static"
    step = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=20)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own, about the wrapper's buffers
        inputs = {"input_ids": ids[:, :1], "cache_position": torch.tensor([0])}
        program = torch.export.export(step, (), inputs, strict=True).module()
        logits = [program(input_ids=ids[:, t : t + 1], cache_position=torch.tensor([t])) for t in range(5)]
        close(torch.cat(logits, 1), model(ids[:, :5]).logits)


@pytest.mark.parametrize("name", ["softmax", "norm"])
def test_traced(make, ids, name):
    model = make(name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what depends on the inputs' sizes becomes a constant, as always in a trace
        traced = torch.jit.trace(model, (ids,), strict=False)
    close(traced(ids.flip(1))["logits"], model(ids.flip(1)).logits)


def test_no_documents_are_assumed_while_tracing(make, ids):
    """Positions that the model makes itself never start again, so the fast kernel without a mask is enough."""
    names = []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    model = make("softmax")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    close(compiled(ids).logits, model(ids).logits)
    assert any("scaled_dot_product_attention" in name for name in names)
    assert not any("searchsorted" in name or "softmax_rnn" in name for name in names)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3]]).expand(2, -1)
    close(compiled(ids, position_ids=positions).logits, model(ids, position_ids=positions).logits)
    assert not torch.allclose(compiled(ids, position_ids=positions).logits, model(ids).logits)
