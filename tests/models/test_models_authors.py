"""Checkpoints in the authors' format, written here tensor by tensor, against dense formulas written here as well."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import softmax_rnn as sr
from softmax_rnn.models import SoftmaxRnnForCausalLM, load_authors, load_model
from softmax_rnn.models.authors import TYPES, WHY_NOT
from softmax_rnn.slots.presets import AUTHORS

HIDDEN, HEADS, DIM, LAYERS = 32, 4, 8, 2
FIELDS = {
    "vocab_size": 48, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0,
    "use_cache": True, "attention_dropout": 0.0, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip

# attention_type -> (weight, divisor, input gate, output gate, norm)
CLAMPED = "exp5"
FORMULAS = {
    "softmax": ("exp", "sum", False, None, None),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": ("exp", "one", False, None, "l2"),
    "softmax_divS_gate": (CLAMPED, "length", False, "before", None),
    "softmax_divS_gatev2": (CLAMPED, "length", False, "before", None),
    "gated_softmax_no_in_gate_no_norm": (CLAMPED, "length", False, "before", None),
    "softmax_gate": (CLAMPED, "one", False, "before", None),
    "softmax_divs": (CLAMPED, "length", False, None, None),
    "gated_softmax_no_gate_no_norm": (CLAMPED, "length", False, None, None),
    "softmax_clamp_denom": (CLAMPED, "sum1", False, None, None),
    "softmax_detach_denom": (CLAMPED, "sum1", False, None, None),
    "softmax_detach_denom_gate": (CLAMPED, "sum+1e-4", False, "before", None),
    "gated_softmax_no_out_gate_no_norm": (CLAMPED, "length", True, None, None),
    "gated_softmax_no_norm": (CLAMPED, "length", True, "before", None),
    "gated_softmax": (CLAMPED, "length", True, "before", "layer"),
    "gated_softmax_no_in_gate": (CLAMPED, "length", False, "before", "layer"),
    "gated_softmax_no_out_gate": (CLAMPED, "length", True, None, "layer"),
    "gated_softmax_no_gate": (CLAMPED, "length", False, None, "layer"),
    "gated_softmax_no_gate_rmsnorm": (CLAMPED, "length", False, None, "rms"),
    "softmax_divS_norm": (CLAMPED, "length", False, None, "rms"),
    "gated_softmax_no_gate_rmsnorm_nodivS": (CLAMPED, "one", False, None, "rms"),
    "gated_softmax_no_gate_L2norm_nodivS": (CLAMPED, "one", False, None, "l2"),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": ("exp", "length", False, "before", "l2"),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": ("exp", "length", False, "after", "l2"),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": ("relu", "one", False, None, "l2"),
    "gated_relu_no_in_gate_no_norm": ("relu5", "length", False, "before", None),
    "linear_elu": ("elu", "sum", False, None, None),
    "linear_relu": ("relu_unscaled", "sum+1e-8", False, None, None),
    "linear_cosine": ("cosine", "learned", False, None, None),
    "softmax_taylor_80terms": ("taylor79", "sum", False, None, None),
    "linear_cosine, as coded": ("heads_cosine", "per_key", False, None, None),
    "softmax_taylor_80terms, as coded": ("taylor79", "one", False, None, None),
}
WEIGHTS = {
    "exp": lambda q, k: (q @ k.mT / math.sqrt(DIM)).exp(),
    "exp5": lambda q, k: (q @ k.mT / math.sqrt(DIM)).clamp(max=5).exp(),
    "relu": lambda q, k: q.relu() @ k.relu().mT / math.sqrt(DIM),
    "relu5": lambda q, k: (q.relu() @ k.relu().mT / math.sqrt(DIM)).clamp(max=5),
    "relu_unscaled": lambda q, k: q.relu() @ k.relu().mT,
    "elu": lambda q, k: (F.elu(q) + 1) @ (F.elu(k) + 1).mT,
    "cosine": lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT,
    "heads_cosine": lambda q, k: F.normalize(q, dim=1) @ F.normalize(k, dim=1).mT,
    "taylor79": lambda q, k: sum((q @ k.mT / math.sqrt(DIM)) ** n / float(math.factorial(n)) for n in range(80)),
}


def extra_tensors(attention_type):
    """Per layer, what the format has beyond Llama's tensors."""
    _, divisor, in_gate, out_gate, norm = FORMULAS[attention_type]
    out = {"abs_pos_enc.pe": torch.randn(1, 1024, HIDDEN)}
    if in_gate:
        out |= {"in_gate_proj.weight": torch.randn(HEADS, HIDDEN), "in_gate_proj.bias": torch.randn(HEADS)}
    if out_gate:
        out |= {"out_gate_proj.weight": torch.randn(HEADS, HIDDEN), "out_gate_proj.bias": torch.randn(HEADS)}
    if norm in ("rms", "layer"):
        out["out_norm.weight"] = torch.rand(DIM) + 0.5
    if norm == "layer":
        out["out_norm.bias"] = torch.randn(DIM)
    if divisor == "learned":
        out["norm_const"] = torch.randn(1, HEADS, 1, 1)
    return out


def write(folder, attention_type, **changes):
    """A checkpoint of the given type; returns all its tensors in float64."""
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**FIELDS))
    tensors = dict(llama.state_dict())
    for i in range(LAYERS):
        tensors |= {f"model.layers.{i}.self_attn.{n}": t for n, t in extra_tensors(attention_type).items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**FIELDS, "attention_type": attention_type, **changes}))
    return {n: t.double() for n, t in tensors.items()}


def dense(attention_type, tensors, ids):
    """Logits in float64, every layer by its formula."""
    weight, divisor, in_gate, out_gate, norm = FORMULAS[attention_type]
    llama = LlamaForCausalLM(LlamaConfig(**FIELDS)).double().eval()
    llama.load_state_dict({n: t for n, t in tensors.items() if n in llama.state_dict()})

    def formula(i):
        own = {n.split("self_attn.")[1]: t for n, t in tensors.items() if f"layers.{i}.self_attn" in n}
        layer = llama.model.layers[i].self_attn

        def forward(hidden_states, position_embeddings, **_):
            B, T, _ = hidden_states.shape
            q, k, v = (
                p(hidden_states).view(B, T, HEADS, DIM).transpose(1, 2)
                for p in (layer.q_proj, layer.k_proj, layer.v_proj)
            )
            q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
            gates = {n: F.linear(hidden_states, own[f"{n}.weight"], own[f"{n}.bias"]).sigmoid().mT[..., None]
                     for n in ("in_gate_proj", "out_gate_proj") if f"{n}.weight" in own}  # fmt: skip
            length = torch.arange(1, T + 1, dtype=q.dtype)[:, None]
            v = v * gates["in_gate_proj"] if in_gate else v
            v = v / length ** own["norm_const"].sigmoid() if divisor == "per_key" else v
            w = WEIGHTS[weight](q, k).tril()
            total = w.sum(-1, keepdim=True)
            out = w @ v
            out = out / {
                "sum": total, "one": 1, "per_key": 1, "length": length, "sum1": total.clamp(min=1), "sum+1e-4": total + 1e-4,
                "sum+1e-8": total + 1e-8, "learned": length ** own.get("norm_const", torch.zeros(1)).sigmoid(),
            }[divisor]  # fmt: skip
            out = out * gates["out_gate_proj"] if out_gate == "before" else out
            if norm == "l2":
                out = F.normalize(out, dim=-1)
            elif norm == "rms":
                out = F.rms_norm(out, (DIM,), own["out_norm.weight"])
            elif norm == "layer":
                out = F.layer_norm(out, (DIM,), own["out_norm.weight"], own["out_norm.bias"])
            out = out * gates["out_gate_proj"] if out_gate == "after" else out
            return layer.o_proj(out.transpose(1, 2).flatten(2)), None

        layer.forward = forward

    for i in range(LAYERS):
        formula(i)
    return llama(ids, use_cache=False).logits


def test_every_type_is_tested():
    assert set(TYPES) == set(AUTHORS) | {
        "softmax",
        "linear_elu",
        "linear_relu",
        "linear_cosine",
        "softmax_taylor_80terms",
    }
    assert set(TYPES) <= set(FORMULAS)


@pytest.mark.parametrize("attention_type", sorted(TYPES))
def test_every_type(tmp_path, ids, attention_type):
    tensors = write(tmp_path, attention_type)
    model = load_authors(tmp_path)
    assert isinstance(model, SoftmaxRnnForCausalLM)
    assert not model.training
    torch.testing.assert_close(model.double()(ids).logits, dense(attention_type, tensors, ids), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("attention_type", ["linear_cosine", "softmax_taylor_80terms"])
def test_the_authors_defects_on_request(tmp_path, ids, attention_type):
    tensors = write(tmp_path, attention_type)
    model = load_authors(tmp_path, authors_bugs=True).double()
    as_coded = dense(f"{attention_type}, as coded", tensors, ids)
    assert not torch.allclose(as_coded, dense(attention_type, tensors, ids))
    torch.testing.assert_close(model(ids).logits, as_coded, atol=1e-8, rtol=1e-8)
    model.save_pretrained(tmp_path / "ours")
    again = SoftmaxRnnForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(ids).logits, as_coded, atol=1e-8, rtol=1e-8)
    if attention_type == "linear_cosine":  # the other has no state of bearable size
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": False}
        assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


def test_a_shared_switch_changes_nothing_elsewhere(tmp_path, ids):
    tensors = write(tmp_path, "softmax_divS_gate")
    logits = load_authors(tmp_path, authors_bugs=True).double()(ids).logits
    torch.testing.assert_close(logits, dense("softmax_divS_gate", tensors, ids), atol=1e-8, rtol=1e-8)


def test_load_model_recognises_them(tmp_path, ids):
    tensors = write(tmp_path, "linear_elu")
    torch.testing.assert_close(
        load_model(tmp_path).double()(ids).logits, dense("linear_elu", tensors, ids), atol=1e-8, rtol=1e-8
    )


def test_torch_files_shards_and_prefixes(tmp_path, ids):
    tensors = write(tmp_path, "softmax_gate")
    expected = load_authors(tmp_path)(ids).logits
    (tmp_path / "model.safetensors").unlink()
    plain = {n: t.float() for n, t in tensors.items()}
    torch.save({f"module.{n}": t for n, t in plain.items()}, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_authors(tmp_path)(ids).logits, expected)
    (tmp_path / "pytorch_model.bin").unlink()
    names = sorted(plain)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({n: plain[n].contiguous() for n in part}, tmp_path / file)
    index = {"weight_map": {n: file for file, part in files.items() for n in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(load_authors(tmp_path)(ids).logits, expected)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(sr.UserError, match=r"b\.safetensors is missing"):
        load_authors(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(sr.UserError, match="damaged"):
        load_authors(tmp_path)


@pytest.mark.parametrize("attention_type", sorted(WHY_NOT))
def test_unsupported_types_say_why(tmp_path, attention_type):
    (tmp_path / "config.json").write_text(json.dumps({**FIELDS, "attention_type": attention_type}))
    with pytest.raises(sr.MechanismError, match=f"{attention_type}' is not supported: ") as error:
        load_authors(tmp_path)
    assert "\n" not in str(error.value)


def sentence(folder, kind, says):
    with pytest.raises(kind, match=says) as error:
        load_authors(folder)
    assert "\n" not in str(error.value)


def test_damaged_or_missing_files_get_one_sentence(tmp_path):
    sentence(tmp_path / "nowhere", sr.UserError, "no readable config.json")
    (tmp_path / "config.json").write_text("{")
    sentence(tmp_path, sr.UserError, "not valid JSON")
    (tmp_path / "config.json").write_text("[]")
    sentence(tmp_path, sr.UserError, "JSON object")
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    sentence(tmp_path, sr.UserError, "no attention_type")
    (tmp_path / "config.json").write_text(json.dumps({**FIELDS, "attention_type": "hardmax"}))
    sentence(tmp_path, sr.MechanismError, "Unknown attention_type 'hardmax'")
    (tmp_path / "config.json").write_text(json.dumps({**FIELDS, "attention_type": "softmax"}))
    sentence(tmp_path, sr.UserError, "has no weights")
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    sentence(tmp_path, sr.UserError, "damaged")
    save_file({"model.norm.weight": torch.ones(HIDDEN)}, tmp_path / "model.safetensors")
    sentence(tmp_path, sr.UserError, "lacks .* tensors that 'softmax' needs, among them lm_head.weight")
    write(tmp_path, "softmax_gate")
    (tmp_path / "config.json").write_text(json.dumps({**FIELDS, "attention_type": "softmax"}))
    sentence(
        tmp_path,
        sr.UserError,
        "4 tensors that 'softmax' does not use, among them model.layers.0.self_attn.out_gate_proj.bias",
    )
    write(tmp_path, "softmax", vocab_size=50)
    sentence(tmp_path, sr.UserError, "has shape")
    write(tmp_path, "softmax", num_attention_heads=5)
    sentence(tmp_path, sr.MechanismError, "not a multiple")


def test_one_truncated_byte(tmp_path):
    write(tmp_path, "softmax")
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    sentence(tmp_path, sr.UserError, "damaged")
