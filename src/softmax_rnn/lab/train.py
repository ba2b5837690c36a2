"""The command ``softmax-rnn train``: from a configuration to a finished run, over as many sessions as it takes.

softmax-rnn train --preset laptop --model.mechanism norm
torchrun --nproc-per-node 2 -m softmax_rnn train --preset laptop --model.mechanism norm

1 check everything that can be wrong, before anything is written
2 open the folder: ours, unlocked, writable; find the newest whole checkpoint
3 train from there
4 say how it ended: done, stopped (and how to go on), diverged, or disk trouble (and what is safe)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..cli import STOPPED, place_of, quieten
from ..errors import UserError, printable
from ..machine import keep_memory, mend_bfloat16
from . import _also_a_function
from .config import RunConfig, RunSettings, configure, parse
from .slurm import AGAIN

if TYPE_CHECKING:
    from .run import Run

Ending = Literal["done", "stopped", "diverged", "failed"]
EXIT_CODES: dict[str, int] = {"done": 0, "stopped": STOPPED, "diverged": 1, "failed": 1}


@dataclass(frozen=True)
class Outcome:
    """How a session ended, where the run is, and the sentence to print."""

    ending: Ending
    folder: Path
    message: str
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """75 (try again) tells a scheduler's script that time was over and everything is saved."""
        return AGAIN if self.signal == signal.SIGUSR2 else EXIT_CODES[self.ending]


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    first = int(os.environ.get("RANK", "0")) == 0
    try:
        outcome = train(parse(argv))
    except UserError:
        if first:
            raise
        return 2
    if first:
        print(printable(outcome.message), file=sys.stdout if outcome.ending == "done" else sys.stderr)
    return outcome.exit_code


def train(config: RunConfig, *, quiet: bool = False) -> Outcome:
    """Begin or continue a run.

    >>> train(parse(["--preset", "tiny"])).ending  # doctest: +SKIP
    'done'
    """
    from .progress import StopSignals

    with StopSignals(may_raise=True) as stop:
        try:
            return _train(config, stop, quiet)
        except KeyboardInterrupt:
            if not stop.asked or not stop.may_raise:
                raise
            message = f"Stopped before training began. To continue: {command_line()}"
            return Outcome("stopped", config.folder, message, stop.asked)


def call(base: str | RunConfig = "laptop", *, quiet: bool = False, **options: Any) -> Run:
    """``softmax_rnn.lab.train(...)``: begin or continue a run, with a progress bar unless ``quiet``.

    Returns it with its metrics, whether or not it came to its end. Interrupting the kernel saves, and the same call continues.

    >>> from softmax_rnn.lab import train
    >>> run = train("tiny", mechanism="norm")  # doctest: +SKIP
    >>> run.status, run.last("test_loss")  # doctest: +SKIP
    ('done', 5.21)
    """
    from .run import Run, read_run

    outcome = train(configure(base, **options), quiet=quiet)
    if outcome.ending == "failed":
        raise UserError(outcome.message)
    return read_run(outcome.folder) if (outcome.folder / "config.yaml").exists() else Run(outcome.folder)


def _train(config: RunConfig, stop: Any, quiet: bool) -> Outcome:
    from .folder import open_folder
    from .progress import say_loading

    world = int(os.environ.get("WORLD_SIZE", "1"))
    first = int(os.environ.get("RANK", "0")) == 0
    micro = micro_batch(config, world)
    _check_tracker(config.run.tracker)
    if not quiet and first:
        say_loading()
    _check_device(config.run.device)
    _check_compiler(config.run)
    quieten()
    keep_memory()
    if config.train.precision == "bf16":
        mend_bfloat16()
    if config.run.threads is not None:
        import torch

        torch.set_num_threads(config.run.threads)

    from .data import prepare
    from .model import build_model, check_model, load_source, start_from

    source, tokenizer = None, config.tokenizer
    if config.model.init is None:
        _check_memory(check_model(config.model, config.tokenizer.vocab, config.data.length))
    else:
        source = load_source(config.model.init)
        _check_memory(source.num_parameters())
        if tokenizer.source == "bpe":  # a model reads the tokens it was trained on
            tokenizer = replace(tokenizer, source=str(place_of(config.model.init)))
    data = prepare(config.data, tokenizer, quiet=quiet or not first)
    arguments = training_arguments(config, world, micro)
    if source is None:
        model: Any = build_model(config.model, data.tokenizer, config.data.length, config.seed, data.both_sides)
    elif data.both_sides:
        raise UserError(f"A model that sees both sides starts anew: leave --model.init {config.model.init} out.")
    else:
        model = start_from(config.model, source, data, config.seed, quiet=quiet or not first)
    with open_folder(config, data.fingerprint, world, first) as opened:
        if opened.finished:
            return Outcome("done", config.folder, f"{config.folder} is already done.")
        stop.may_raise = False
        return _session(config, arguments, model, data, opened.checkpoint, stop, quiet=quiet or not first)


def micro_batch(config: RunConfig, world: int) -> int:
    """How many rows one process computes at once; refused where the batch cannot be dealt out evenly."""
    batch = config.train.batch
    if batch % world:
        raise UserError(f"train.batch {batch} cannot be dealt out evenly to {world} processes: change one of them.")
    micro = config.run.micro_batch or batch // world
    if (batch // world) % micro:
        raise UserError(f"run.micro_batch {micro} must divide the {batch // world} rows of each process.")
    if config.run.sharded and world == 1:
        raise UserError(
            "run.sharded needs several processes: start with torchrun --nproc-per-node N -m softmax_rnn train ..."
        )
    return micro


def _check_tracker(tracker: str) -> None:
    if tracker != "none" and importlib.util.find_spec(tracker) is None:
        raise UserError(
            f"--run.tracker {tracker} needs the package {tracker}: pip install {tracker}, or leave the option out."
        )


def _check_device(device: str) -> None:
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device, True):
        raise UserError(f"--run.device {device}: torch finds no such device on this machine; cpu and auto always work.")


def _check_compiler(run: RunSettings) -> None:
    """What torch.compile needs that may not be there."""
    import torch

    if not run.compile:
        return
    if run.sharded:
        raise UserError("run.compile and run.sharded do not go together: leave one of them out.")
    compiler = os.environ.get("CXX", "g++")
    if run.device in ("auto", "cpu") and not torch.cuda.is_available() and shutil.which(compiler) is None:
        raise UserError(
            f"--run.compile needs a C++ compiler, and {compiler} is not there: install it, or leave the option out."
        )


def _check_memory(parameters: int) -> None:
    """Refuse weights, gradients and moments that this machine cannot hold: asking for them would end in a kill."""
    gigabytes, has = parameters * 16 / 2**30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if gigabytes / world > has:
        raise UserError(
            f"{parameters:,} parameters need {gigabytes:,.0f} GB of memory to train, and this machine has {has:,.0f} GB: "
            "take a smaller model."
        )


def training_arguments(config: RunConfig, world: int, micro: int) -> Any:
    """Trainer's arguments. Making them joins the process group, if there is one."""
    import torch
    from transformers import TrainingArguments

    t, run = config.train, config.run
    on_cpu = run.device == "cpu" or (run.device == "auto" and not torch.cuda.is_available())
    return TrainingArguments(
        output_dir=str(config.folder),
        run_name=config.folder.name,
        max_steps=t.steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=t.batch // world // micro,
        learning_rate=t.lr,
        warmup_steps=t.warmup,
        lr_scheduler_type="linear",
        adam_beta1=t.beta1,
        adam_beta2=t.beta2,
        adam_epsilon=t.eps,
        weight_decay=t.weight_decay,
        max_grad_norm=config.clip,
        bf16=t.precision == "bf16",
        use_cpu=on_cpu,
        logging_steps=t.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=t.eval_every,
        save_strategy="steps",
        save_steps=run.save_every,
        report_to=run.tracker,
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        seed=config.seed,
        train_sampling_strategy="sequential",  # the data has the order of training already
        remove_unused_columns=False,
        dataloader_num_workers=run.workers,
        dataloader_pin_memory=not on_cpu,
        ddp_find_unused_parameters=False,
    )


def _session(
    config: RunConfig, arguments: Any, model: Any, data: Any, begin: Path | None, stop: Any, *, quiet: bool
) -> Outcome:
    from transformers import PrinterCallback

    from .data import Order, collate
    from .folder import checkpoints
    from .progress import TrainingBar
    from .recorder import Diverged, Recorder
    from .trainer import Flow, RunTrainer, StorageError, shard

    if config.run.sharded:
        shard(model.to(arguments.device))
    if config.run.compile:
        model.compile(dynamic=False)
    folder, t = config.folder, config.train
    recorder = Recorder(folder / "metrics.jsonl", config.run.patience, writes=arguments.process_index == 0)
    with TrainingBar(folder.name, t.steps, quiet=quiet) as bar:
        trainer = RunTrainer(
            recorder=recorder,
            bar=bar,
            schedule_steps=t.schedule_steps or t.steps,
            keep=config.run.keep,
            sharded=config.run.sharded,
            compiled=config.run.compile,
            model=model,
            args=arguments,
            train_dataset=Order(data.train, t.steps * t.batch, config.seed),
            eval_dataset=data.test,
            data_collator=partial(collate, pad=data.tokenizer.pad_token_id),
            processing_class=data.tokenizer,
            callbacks=[Flow(bar, stop)],
        )
        trainer.remove_callback(PrinterCallback)
        recorder.resume(begin, lambda text: print(text, file=sys.stderr))
        try:
            trainer.train(resume_from_checkpoint=None if begin is None else str(begin))
            trainer.settle()
            if recorder.progress.bad_steps:
                raise Diverged
        except Diverged:
            recorder.write({"event": "diverged"})
            bad = recorder.progress.bad_steps
            text = (
                f"{folder}: the loss has not been finite for {bad} steps, up to step {recorder.progress.step}; stopped."
            )
            return Outcome("diverged", folder, f"{text} {_last_good(checkpoints(folder))}")
        except (StorageError, OSError) as error:
            return Outcome(
                "failed",
                folder,
                f"{folder}: {error}. {_last_good(checkpoints(folder))} Make room, then run the same command.",
            )
    if trainer.state.global_step < t.steps:
        how = f"Stopped at step {trainer.state.global_step} of {t.steps} and saved. To continue: {command_line()}"
        return Outcome("stopped", folder, how, stop.asked)
    recorder.write({"event": "done"})
    epochs = t.steps * t.batch / len(data.train)
    again = f", {epochs:.1f} times the text" if epochs > 1.5 and not config.data.source.startswith("task:") else ""
    return Outcome("done", folder, f"{folder} is done: {t.steps} steps, {recorder.progress.tokens:,} tokens{again}.")


def _last_good(saved: list[Path]) -> str:
    return f"The last good checkpoint is {saved[-1]}." if saved else "There is no checkpoint yet."


def command_line() -> str:
    """What was typed, to be typed again."""
    import shlex

    world = os.environ.get("WORLD_SIZE", "1")
    many = world != "1" and "SLURM_JOB_ID" not in os.environ
    typed = ["torchrun", "--nproc-per-node", world, "-m", "softmax_rnn"] if many else ["softmax-rnn"]
    words = sys.argv[1:]
    return shlex.join([*typed, *(words if words[:1] == ["train"] else ["train", *words])])


_also_a_function(__name__)

if __name__ == "__main__":  # torchrun -m softmax_rnn.lab.train, as in the first edition
    from ..cli import main as cli

    sys.exit(cli(["train", *sys.argv[1:]]))
