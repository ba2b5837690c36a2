"""The lab: train any mechanism on any text, on a laptop or a cluster, without ever losing a run.

>>> from softmax_rnn.lab import train, sweep, load_run
>>> run = train("tiny", mechanism="norm", steps=100)  # doctest: +SKIP

In the order in which a run passes through them:

    config.py       what a run is: dataclasses, YAML, command line, content hash; complete ones by name
    options.py      dataclasses from plain data and from the command line
    corpora.py      where documents come from: built in, files, hub
    tokenizer.py    a BPE trained on the corpus, or any other; tokenised text on disk
    data.py         the split, the rows, their order, batches
    model.py        the configuration's model, new or from another
    train.py        the command: check, open the folder, train, say how it ended
    folder.py       a run's folder: whose it is, where to continue, what it ran on; checkpoints that are whole
    trainer.py      Hugging Face's Trainer with atomic checkpoints, sharded or not
    recorder.py     metrics.jsonl: losses, spikes, steps without a finite loss, damage
    progress.py     progress bars, a table of many runs, Ctrl-C
    sweep.py        the command: grids of runs on this machine
    slurm.py        the same on a cluster
    run.py          one run, as its files tell
    store.py        many runs as tables, in folders or packed into few files
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .._imports import lazy_names

_HOME = {
    "config": ["RunConfig", "RunSettings", "TrainConfig", "configure", "recipe"],
    "data": ["DataConfig"],
    "model": ["ModelConfig"],
    "run": ["Run", "load_run"],
    "store": ["find_runs", "runs_table", "tidy"],
    "tokenizer": ["TokenizerConfig"],
    "": ["sweep", "train"],  # modules that can be called
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from .config import RunConfig as RunConfig
    from .config import RunSettings as RunSettings
    from .config import TrainConfig as TrainConfig
    from .config import configure as configure
    from .config import recipe as recipe
    from .data import DataConfig as DataConfig
    from .model import ModelConfig as ModelConfig
    from .run import Run as Run
    from .run import load_run as load_run
    from .store import find_runs as find_runs
    from .store import runs_table as runs_table
    from .store import tidy as tidy
    from .sweep import call as sweep  # noqa: F401
    from .tokenizer import TokenizerConfig as TokenizerConfig
    from .train import call as train  # noqa: F401


class _Command(ModuleType):
    """``lab.train`` is the module of the command and, called, its function ``call``; so for ``lab.sweep``."""

    call: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.call(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.call)


def _also_a_function(module: str) -> None:
    """Called at the end of ``train.py`` and ``sweep.py``."""
    if module != "__main__":
        sys.modules[module].__class__ = _Command
