"""Programs of others with our models: trl, peft and lm-eval, by their own command lines where they have one.

They are not needed for anything else, so they are skipped where they are not installed (``make clients`` installs them).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import softmax_rnn as sr
from tests import PATIENCE

from .test_models_export import tokenizer

pytestmark = [pytest.mark.clients, pytest.mark.slow]
WHY = "not installed: make clients"


@pytest.fixture
def folder(make, tmp_path):
    model = make(["norm", "taylor2"])
    model.save_pretrained(tmp_path / "model")
    t = tokenizer()
    t.add_special_tokens({"bos_token": "w1", "eos_token": "w2"})
    t.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    t.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def call(*args, cwd):
    """A command of another package, offline, in a process that has not imported ours."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(cwd / "cache"), "HF_MODULES_CACHE": str(cwd / "modules")}
    quiet = {"TQDM_DISABLE": "1", "WANDB_MODE": "disabled", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**os.environ, **offline, **quiet}
    done = subprocess.run(args, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def script(name):
    return str(Path(sys.executable).with_name(name))


def test_trl_on_the_command_line(folder, tmp_path):
    pytest.importorskip("trl", reason=WHY)
    (tmp_path / "data").mkdir()
    rows = [{"text": f"w{3 + i % 40} w4 w5 w6 w{5 + i % 30}"} for i in range(8)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "tuned"
    call(
        script("trl"), "sft", "--model_name_or_path", str(folder), "--trust_remote_code", "--dataset_name", str(tmp_path / "data"),
        "--output_dir", str(out), "--max_steps", "2", "--per_device_train_batch_size", "2", "--report_to", "none", "--use_cpu",
        "--gradient_checkpointing", "False", "--bf16", "False", "--max_length", "16", cwd=tmp_path,
    )  # fmt: skip
    from softmax_rnn.models import load_model

    tuned, before = load_model(out), load_model(folder)
    assert tuned.config.mechanism == ["norm", "taylor2"]
    assert not torch.equal(tuned.lm_head.weight, before.lm_head.weight)


def test_trl_from_python(folder, tmp_path):
    trl = pytest.importorskip("trl", reason=WHY)
    from datasets import Dataset

    rows = Dataset.from_list([{"text": f"w{3 + i % 40} w4 w5 w6"} for i in range(4)])
    args = trl.SFTConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, max_length=16, disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.SFTTrainer(model=str(folder), args=args, train_dataset=rows)
    assert isinstance(trainer.model, sr.SoftmaxRnnForCausalLM)
    assert trainer.train().training_loss > 0


def test_lm_eval_on_the_command_line(folder, tmp_path):
    pytest.importorskip("lm_eval", reason=WHY)
    for package in ("evaluate", "sacrebleu", "rouge_score", "sqlitedict", "pytablewriter", "word2number"):
        pytest.importorskip(package, reason=WHY)
    rows = [{"text": "w3 w4 w5", "good": " w6", "bad": " w7"} for _ in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "tiny", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{text}}", "doc_to_target": 0,
        "doc_to_choice": "{{[good, bad]}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(json.dumps(task))
    said = call(
        script("lm_eval"), "--model", "hf", "--model_args", f"pretrained={folder},trust_remote_code=True", "--device", "cpu",
        "--include_path", str(tmp_path), "--tasks", "tiny", "--batch_size", "2", cwd=tmp_path,
    )  # fmt: skip
    assert "acc" in said


def test_peft(folder, ids, tmp_path):
    peft = pytest.importorskip("peft", reason=WHY)
    base = sr.SoftmaxRnnForCausalLM.from_pretrained(folder)
    before = base(ids).logits.detach()
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, task_type="CAUSAL_LM", init_lora_weights=False)
    model = peft.get_peft_model(base, config)
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "lora" in n)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    torch.testing.assert_close(again(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    assert not torch.allclose(again(input_ids=ids).logits, before)
    assert again.generate(input_ids=ids, max_new_tokens=3).shape[1] == ids.shape[1] + 3
