"""Training plumbing: Trainer, gradient checkpointing, autocast, torch.compile, DDP."""

import subprocess
import sys
import textwrap

import pytest
import torch
from transformers import Trainer, TrainingArguments

from softmax_rnn.models import SoftmaxRnnForCausalLM
from tests import PATIENCE

SOME = ["softmax", "norm", "in_out_gate_layer", "linear_cosine", "taylor2", "relu_gate"]


def rows(n=64, length=16):
    """Sequences that count upwards: easy to learn."""
    start = torch.randint(3, 30, (n, 1), generator=torch.Generator().manual_seed(0))
    ids = start + torch.arange(length)
    return [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize("name", ["norm", "in_out_gate", "taylor2"])
def test_trainer_learns_and_resumes(make, tmp_path, name):
    def trainer(model, steps, **options):
        arguments = TrainingArguments(
            tmp_path, max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=5, report_to=[],
            save_steps=10, use_cpu=True, seed=0, disable_tqdm=True, lr_scheduler_type="constant", **options,
        )  # fmt: skip
        return Trainer(model, arguments, train_dataset=rows())

    first = trainer(make(name, initializer_range=0.02).train(), 20)
    first.train()
    losses = [entry["loss"] for entry in first.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] - 0.3
    model = SoftmaxRnnForCausalLM.from_pretrained(tmp_path / "checkpoint-10")
    second = trainer(model, 20)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert [entry["loss"] for entry in second.state.log_history if "loss" in entry] == losses


@pytest.mark.parametrize("name", SOME)
def test_gradient_checkpointing_changes_nothing(make, ids, name):
    grads = []
    for checkpointing in (False, True):
        model = make(name).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(ids, labels=ids).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
def test_autocast_and_bfloat16_weights(make, ids, name):
    model = make(name, initializer_range=0.1).train()
    exact = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters()
    )
    torch.testing.assert_close(loss, exact, atol=0.03, rtol=0)  # bfloat16 has 8 bits: 0.4 % of a loss near 4
    half = model.to(torch.bfloat16).eval()
    logits = half(ids).logits
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    half.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)


# torch says this about its own code while it compiles a custom autograd function.
INSTANTIATED = "ignore:.*should not be instantiated:DeprecationWarning"


@pytest.mark.slow
@pytest.mark.filterwarnings(INSTANTIATED)
@pytest.mark.parametrize("name", [SOME[:2], SOME[2:4], SOME[4:]], ids=str)  # a layer each
def test_compile(make, ids, name):
    torch.compiler.reset()
    model = make(name).train()
    model(ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(ids, labels=ids).loss.backward()
    for p, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings(INSTANTIATED)
def test_compile_to_machine_code(make, ids):
    torch.compiler.reset()
    model = make("taylor2")
    expected = model(ids).logits
    torch.testing.assert_close(torch.compile(model)(ids).logits, expected, atol=1e-5, rtol=1e-4)


DDP = """
import torch, torch.distributed as dist
from softmax_rnn.models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(rank)  # different weights, which DDP makes equal
config = SoftmaxRnnConfig(
    vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    mechanism=["in_out_gate_layer", "taylor2"],
)
model = SoftmaxRnnForCausalLM(config)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ids = torch.randint(0, 48, (4, 12), generator=torch.Generator().manual_seed(5))
ddp(ids[2 * rank : 2 * rank + 2], labels=ids[2 * rank : 2 * rank + 2]).loss.backward()
together = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(ids, labels=ids).loss.backward()
worst = max((a - p.grad).abs().max().item() for a, p in zip(together, model.parameters()))
assert worst < 1e-6, worst
print("same gradients")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(textwrap.dedent(DDP))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same gradients") == 2
