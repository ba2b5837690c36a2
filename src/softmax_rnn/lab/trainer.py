"""Hugging Face's ``Trainer``, except that checkpoints are atomic, metrics are ours, and the model may be sharded.

What is overridden, and why:
    training_step, log        every step's loss goes through the recorder; rows in metrics.jsonl instead of Trainer's own logs
    evaluate                  the exact mean over the test set's tokens, the same for any number of processes
    _save_checkpoint          into a temporary folder, then published in one rename
    _save/_load_optimizer...  optimiser state by parameter name, so that a run can change its number of processes, or be sharded
    save_model, _load_from... whole tensors in and out of a sharded model
    create_scheduler          the decay may reach beyond the last step

Sharding is torch's own ``fully_shard``: accelerate's FSDP plugin becomes plain DDP on CPU without a word. Checkpoints hold whole
tensors by name, whatever the number of processes and whether or not they were sharded: a run may change either between two
sessions.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..models import SoftmaxRnnForMaskedLM
from ..tasks.base import TaskRows
from . import folder
from .data import collate
from .progress import StopSignals, TrainingBar
from .recorder import Recorder

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class StorageError(Exception):
    """A checkpoint or a row could not be written."""


class RunTrainer(Trainer):
    """As ``Trainer``, for one run folder."""

    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        *,
        recorder: Recorder,
        bar: TrainingBar,
        schedule_steps: int,
        keep: int,
        sharded: bool,
        compiled: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.recorder, self.bar = recorder, bar
        self.schedule_steps, self.keep, self.sharded = schedule_steps, keep, sharded
        # Trainer's own switch for a model that reduces its gradients itself: prepare it, but do not wrap it in DDP.
        self.is_distributed_loading_by_transformers = sharded
        self._steps: list[Tensor] = []  # (loss, tokens) of this process, not yet with the recorder
        self._open: Tensor | None = None  # of the step whose micro-batches are still coming
        self._grad_norm: Any = None
        self.compiled = compiled
        self._compiling: float | None = None  # how long the first step took, until a row has said it
        self.run = Path(str(self.args.output_dir))

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule's horizon instead of the number of steps."""
        return super().create_scheduler(self.schedule_steps, optimizer)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """As ``Trainer``'s; what it returns is kept, without waiting for the device."""
        tokens = inputs["labels"].ne(-100).sum()
        first, began = self.compiled and self._grad_norm is None and self._open is None, time.monotonic()
        if first:
            self.bar.say("compiling: the first step takes long")
        loss = super().training_step(model, inputs | {"loss_only": True}, num_items_in_batch)
        if first:
            self._compiling = time.monotonic() - began
            self.bar.say(f"compiled: the first step took {self._compiling:.0f} s")
        pair = torch.stack([loss.double(), tokens.to(loss.device).double()])
        self._open = pair if self._open is None else self._open + pair
        if self.accelerator.sync_gradients:
            self._steps.append(self._open)
            self._open = None
        return loss

    def settle(self) -> None:
        """Hand the kept steps to the recorder, averaged over the processes."""
        if not self._steps:
            return
        pairs = torch.stack(self._steps)
        self._steps = []
        if self.args.world_size > 1:
            dist.all_reduce(pairs)
        pairs[:, 0] /= self.args.world_size
        self.recorder.add([(loss, int(tokens)) for loss, tokens in pairs.tolist()])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Turn Trainer's logs into rows; the trackers get the same rows."""
        if "loss" in logs:
            self.settle()
            more = {} if self._compiling is None else {"compile_seconds": self._compiling}
            self._compiling = None
            row = self.recorder.train_row(
                learning_rate=logs["learning_rate"], grad_norm=float(logs["grad_norm"]), **more
            )
        elif "eval_loss" in logs:
            row = self.recorder.test_row(
                **{k.replace("eval_", "test_", 1): v for k, v in logs.items() if k.startswith("eval_")}
            )
        else:
            return
        self.bar.row(row)
        super().log({k: v for k, v in row.items() if k != "step" and v is not None})

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """As ``Trainer``'s, timed: the share of time spent waiting for data is a metric."""
        began = time.monotonic()
        try:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        finally:
            self.recorder.waited += time.monotonic() - began

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not counted: it would walk over all parameters in every step."""
        return 0

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        self._grad_norm = gathered(super()._get_grad_norm(model, grad_norm))
        return self._grad_norm

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Mean loss per token of the test set; for a task also the share of right answers, at longer lengths, too."""
        self.settle()
        test: Any = self.eval_dataset
        loss, accuracy = self._test(test)
        found = {"loss": loss}
        if isinstance(test, TaskRows):
            found["accuracy"] = accuracy
            found |= {f"accuracy_{length}": self._test(rows)[1] for length, rows in test.longer.items()}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @torch.no_grad()
    def _test(self, test: Any) -> tuple[float, float]:
        """Loss and accuracy per asked token. Every process takes every n-th batch; all make the same number of calls."""
        size, world, rank = self.args.eval_batch_size, self.args.world_size, self.args.process_index
        total = torch.zeros(3, dtype=torch.float64, device=self.args.device)
        model = self.model
        model.eval()
        shift = 0 if isinstance(model, SoftmaxRnnForMaskedLM) else 1  # a causal model answers one token earlier
        for start in range(0, len(test), size * world):
            mine = range(start + rank * size, min(start + (rank + 1) * size, len(test)))
            batch = collate([test[i] for i in mine or [0]], pad=0)
            batch = {name: tensor.to(self.args.device) for name, tensor in batch.items()}
            # Not compiled: the last batch is smaller, and every size would be compiled by itself.
            with torch.compiler.set_stance("force_eager") if self.compiled else contextlib.nullcontext():
                # The loss is the sum over tokens. Whether answers are right is a task's question only.
                out = model(**batch, num_items_in_batch=1, loss_only=not isinstance(test, TaskRows))
            if mine:
                labels = batch["labels"][:, shift:]
                right = (
                    (out.logits[:, : out.logits.shape[1] - shift].argmax(-1) == labels).sum()
                    if isinstance(test, TaskRows)
                    else labels.new_zeros(())
                )
                total += torch.stack([out.loss.double(), labels.ne(-100).sum().double(), right.double()])
        if world > 1:
            dist.all_reduce(total)
        return (total[0] / total[1]).item(), (total[2] / total[1]).item()

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.run / folder.SAVING)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.settle()
        if self.recorder.progress.bad_steps or not torch.isfinite(torch.as_tensor(self._grad_norm)):
            return  # the weights may be lost already: keep the last good checkpoint
        run, name = self.run, f"checkpoint-{self.state.global_step}"
        with _storage_errors(run / name):
            if self.args.should_save:
                folder.clean(run)
                (run / folder.SAVING / name).mkdir(parents=True)
            self._barrier()
            super()._save_checkpoint(model, trial)
            self._barrier()
            if self.args.should_save:
                (run / folder.SAVING / name / "training_args.bin").unlink(missing_ok=True)  # config.yaml says it
                self.recorder.save(run / folder.SAVING / name)
                folder.publish(run, name)
                folder.prune(run, self.keep)
            self._barrier()

    def _barrier(self) -> None:
        if self.args.world_size > 1:
            dist.barrier()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As ``Trainer``'s, with the parameters of a sharded model gathered first."""
        if not self.sharded:
            return super().save_model(output_dir, _internal_call)
        state = whole_model_state(self.model)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)
        return None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if self.sharded:
            load_model_state(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = whole_optimizer_state(self.model, self.optimizer.optimizer)
        if self.args.should_save:
            torch.save(state, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        load_optimizer_state(self.model, self.optimizer.optimizer, Path(checkpoint) / "optimizer.pt")
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt", weights_only=True))


@contextlib.contextmanager
def _storage_errors(target: Path) -> Iterator[None]:
    """Whatever the writers raise when a disk is full or gone, as one error that names the place."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, RuntimeError) and not any(f.filename == torch.serialization.__file__ for f in frames):
            raise  # torch.save alone raises RuntimeError where others raise OSError
        text = str(error).splitlines()[0]
        free = shutil.disk_usage(target.parent).free
        raise StorageError(f"cannot write {target}: {text} ({free / 2**20:,.1f} MiB free there)") from error


class Flow(TrainerCallback):
    """When to log, save and stop beyond Trainer's regular intervals, and the progress bar."""

    def __init__(self, bar: TrainingBar, stop: StopSignals) -> None:
        self.bar, self.stop = bar, stop

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """The last step is logged too; a request to stop saves first."""
        self.bar.step(state.global_step)
        if state.global_step >= state.max_steps:
            control.should_log = True
        elif self._asked(args, state):
            control.should_save = control.should_training_stop = True
        return control

    def _asked(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Processes must agree on the step to stop at; they ask one another whenever a row is written."""
        if args.world_size == 1:
            return self.stop.asked is not None
        if state.global_step % state.logging_steps:
            return False
        asked = torch.tensor(self.stop.asked or 0, device=args.device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        self.stop.asked = int(asked) or None
        return self.stop.asked is not None


def shard(model: nn.Module) -> None:
    """Shard every decoder layer, then what is left, over all processes."""
    from ..models import SoftmaxRnnForCausalLM

    assert isinstance(model, SoftmaxRnnForCausalLM | SoftmaxRnnForMaskedLM)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)


def whole_model_state(model: nn.Module) -> dict[str, Any]:
    """Every parameter, gathered on the first process. All processes must call it."""
    return get_model_state_dict(model, options=WHOLE)


def load_model_state(model: nn.Module, checkpoint: Path) -> None:
    """Each process takes its part of the whole tensors in the checkpoint."""
    whole: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        whole |= load_file(file)
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Moments by parameter name, gathered on the first process. All processes must call it."""
    return get_optimizer_state_dict(model, optimizer, options=WHOLE)


def load_optimizer_state(model: nn.Module, optimizer: Optimizer, file: Path) -> None:
    """The inverse of ``whole_optimizer_state``; each process takes its part."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(full_state_dict=True))


def gathered(value: Any) -> Any:
    """A sharded number as a plain tensor; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
