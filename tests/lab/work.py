"""Training in child processes that can be killed. The children fork from a server that has imported everything, so one costs a second."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["softmax_rnn.lab.train", "softmax_rnn.lab.trainer", "softmax_rnn.models", "softmax_rnn.cli"]
)

MODEL = "{hidden_size: 16, intermediate_size: 32, num_attention_heads: 2, num_hidden_layers: 1}"
TINY = [
    "--preset",
    "tiny",
    "--data.length",
    "16",
    "--tokenizer.vocab",
    "300",
    "--model.overrides",
    MODEL,
    "--run.threads",
    "1",
]


def tiny_on(corpus: Path, root: Path) -> list[str]:
    """The options of a tiny run on the small corpus, in a folder under ``root``."""
    return [*TINY, "--data.source", str(corpus), "--data.test_fraction", "0.1", "--run.root", str(root)]


class Child:
    """``softmax-rnn train`` in a process of its own; ``faults`` are armed in it before it starts."""

    def __init__(
        self, argv: list[str], log: Path, env: dict[str, str] | None = None, faults: dict[str, Any] | None = None
    ):
        self.log = log
        self.process = CONTEXT.Process(
            target=_main, args=(argv, str(log), dict(os.environ) | (env or {}), faults or {})
        )
        self.process.start()

    def wait(self) -> int:
        self.process.join()
        code = self.process.exitcode
        assert code is not None
        return code

    @property
    def output(self) -> str:
        return self.log.read_text()

    def poll(self) -> bool:
        """True while it runs; returns at once when it ends, and soon otherwise."""
        self.process.join(0.001)
        return self.process.is_alive()


def _main(argv: list[str], log: str, env: dict[str, str], faults: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(env)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from softmax_rnn import cli

    for name, argument in faults.items():
        FAULTS[name](argument)
    sys.argv = ["softmax-rnn", "train", *argv]
    code = cli.main(["train", *argv])
    sys.stdout.flush()
    os._exit(code)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wrap(owner: Any, name: str, call: int, fault: Any) -> None:
    """Let the ``call``-th call of a function go wrong: ``fault(original, args, kwargs)`` happens instead."""
    original, count = getattr(owner, name), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return fault(original, args, kwargs) if count[0] == call else original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _kill_at(where: str) -> Any:
    def arm(call: int) -> None:
        import torch

        from softmax_rnn import files
        from softmax_rnn.lab import folder, recorder, tokenizer, trainer

        def half_a_row(original: Any, args: Any, kwargs: Any) -> None:
            with args[0].file.open("a") as file:
                file.write('{"step": 1, "train_')
            die()

        def half_a_file(original: Any, args: Any, kwargs: Any) -> None:
            original(*args, **kwargs)
            os.truncate(args[1], 100)
            die()

        def half_appended(original: Any, args: Any, kwargs: Any) -> None:
            with (args[0].folder / args[1]).open("ab") as file:
                file.write(args[2].tobytes()[:3])
            die()

        def half_a_text(original: Any, args: Any, kwargs: Any) -> None:
            args[0].with_name(f".{args[0].name}.new").write_text(args[1][:9])
            die()

        def at_once(original: Any, args: Any, kwargs: Any) -> None:
            die()

        def afterwards(original: Any, args: Any, kwargs: Any) -> None:
            original(*args, **kwargs)
            die()

        owner, name, fault = {
            "step": (trainer.RunTrainer, "training_step", at_once),
            "evaluation": (trainer.RunTrainer, "evaluate", at_once),
            "row": (recorder.Recorder, "write", half_a_row),
            "file": (torch, "save", half_a_file),
            "text": (files, "write_atomically", at_once),
            "half a text": (files, "write_atomically", half_a_text),
            "fsync": (files, "fsync", at_once),
            "publish": (folder, "publish", at_once),
            "published": (folder, "publish", afterwards),
            "remove": (folder, "remove", at_once),
            "tokens": (tokenizer._Writer, "_append", half_appended),
        }[where]
        _wrap(owner, name, call, fault)

    return arm


def _slow_writes(_: Any) -> None:
    """Every file of a checkpoint waits, after its first half, for the parent to kill us."""
    import torch

    original = torch.save

    def save(state: Any, path: Any) -> None:
        original(state, path)
        os.truncate(path, os.path.getsize(path) // 2)
        signal.pause()

    torch.save = save  # type: ignore[assignment]


def _no_space(call: int) -> None:
    import errno

    import torch

    def full(original: Any, args: Any, kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(args[1]))

    _wrap(torch, "save", call, full)


def _no_space_for_text(call: int) -> None:
    import errno

    from softmax_rnn import files

    def full(original: Any, args: Any, kwargs: Any) -> None:
        args[0].with_name(f".{args[0].name}.new").write_text(args[1][:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    _wrap(files, "write_atomically", call, full)


def _file_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _interrupt(step: int) -> None:
    from softmax_rnn.lab import trainer

    def ask(original: Any, args: Any, kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **kwargs)

    _wrap(trainer.RunTrainer, "training_step", step, ask)


def _signals(what: tuple[int, int]) -> None:
    """The same signal twice in one step, as schedulers do it."""
    from softmax_rnn.lab import trainer

    def ask(original: Any, args: Any, kwargs: Any) -> Any:
        os.kill(os.getpid(), what[1])
        os.kill(os.getpid(), what[1])
        return original(*args, **kwargs)

    _wrap(trainer.RunTrainer, "training_step", what[0], ask)


def _early_signal(number: int) -> None:
    from softmax_rnn.lab import data

    def ask(original: Any, args: Any, kwargs: Any) -> Any:
        os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    _wrap(data, "prepare", 1, ask)


def _poison(step: int) -> None:
    """From this step on, the loss is not a number."""
    from softmax_rnn.lab import trainer

    original, count = trainer.RunTrainer.training_step, [0]

    def step_with_poison(self: Any, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == step:
            for parameter in self.model.parameters():
                parameter.data.fill_(float("nan"))
        return original(self, *args, **kwargs)

    trainer.RunTrainer.training_step = step_with_poison  # type: ignore[method-assign]


def _expect_shards(_: Any) -> None:
    """Not a fault but a witness: in every step each process must hold half of every matrix."""
    from torch.distributed.tensor import DTensor

    from softmax_rnn.lab import trainer

    original = trainer.RunTrainer.training_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name, parameter in self.model.named_parameters():
            assert isinstance(parameter, DTensor), name
            assert 2 * parameter.to_local().numel() <= parameter.numel() + parameter.shape[-1] + 1, name
        return original(self, *args, **kwargs)

    trainer.RunTrainer.training_step = step  # type: ignore[method-assign]


FAULTS: dict[str, Any] = {
    "expect shards": _expect_shards,
    **{
        f"kill at {where}": _kill_at(where)
        for where in (
            "step",
            "evaluation",
            "row",
            "file",
            "text",
            "half a text",
            "fsync",
            "publish",
            "published",
            "remove",
            "tokens",
        )
    },
    "slow writes": _slow_writes,
    "no space": _no_space,
    "file limit": _file_limit,
    "no space for text": _no_space_for_text,
    "interrupt": _interrupt,
    "signals": _signals,
    "early signal": _early_signal,
    "poison": _poison,
}


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what depends on the clock."""
    from softmax_rnn.lab.recorder import TIMINGS

    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMINGS} for line in lines]


def assert_close(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> None:
    """The same rows, with losses and gradient norms within 1e-5."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for key, value in x.items():
            near = isinstance(value, float)
            assert abs(value - y[key]) < 1e-5 if near else value == y[key], (x["step"], key, value, y[key])


def only_run(root: Path) -> Path:
    found = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")]
    assert len(found) == 1, found
    return found[0]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ranks(world: int, argv: list[str], log: Path, faults: dict[str, Any] | None = None) -> list[Child]:
    """What torchrun does, from the warm server: one child per rank."""
    port = str(free_port())
    env = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        Child(argv, log.with_name(f"{log.name}.{rank}"), env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, faults)
        for rank in range(world)
    ]
