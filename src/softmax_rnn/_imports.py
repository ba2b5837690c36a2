"""How names of this package are imported: public ones when they are first touched (``lazy_names``); and what ``import softmax_rnn``
does to other imports (``install``).

transformers' ``Auto`` classes know our models, whichever of the two is imported first. Neither import brings the other: a promise
is put into transformers' table of configurations, at once if the table is there, or else at the moment it is imported. The promise
is kept (``softmax_rnn.models`` is imported, which registers all classes) when a folder of ours is first opened.

Modules of the first edition that have moved (``MOVED``) are found under their old names, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODEL_TYPE = "softmax_rnn"
TABLE = "transformers.models.auto.configuration_auto"
MOVED = {
    "algebra": "slots.mechanism",
    "denominators": "slots.denominators",
    "features": "backends.powers",
    "kernels": "slots.kernels",
    "norms": "slots.denominators",
    "presets": "slots.presets",
    "lab.cache": "lab.tokenizer",
    "lab.checkpoint": "lab.folder",
    "lab.environment": "lab.folder",
    "lab.recipes": "lab.config",
    "lab.sharding": "lab.trainer",
    "lab.tokens": "lab.tokenizer",
    "microscope.centers": "microscope.heads",
    "microscope.command": "microscope",
    "microscope.quality": "microscope.inspection",
    "microscope.saving": "microscope.results",
    "microscope.series": "microscope.probe",
    "microscope.states": "microscope.results",
    "microscope.tiles": "microscope.probe",
    "microscope.truncate": "microscope.heads",
    "models.loading": "models.folders",
    "models.sizes": "models.llama",
    "paper.catalog": "paper.figures",
    "paper.estimate": "paper",
    "paper.headline": "report.drawing",
    "paper.plots": "report.drawing",
    "paper.reproduce": "paper",
    "report.command": "report",
    "report.glyph": "report.style",
}


class _Promise(dict[str, Any]):
    """Configurations that were registered, and ours, which is imported when it is asked for."""

    def __contains__(self, key: object) -> bool:
        return key == MODEL_TYPE or super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        if key != MODEL_TYPE:
            raise KeyError(key)
        return importlib.import_module("softmax_rnn.models").SoftmaxRnnConfig


def _promise(table: ModuleType) -> None:
    mapping = table.CONFIG_MAPPING
    if not isinstance(mapping._extra_content, _Promise):
        mapping._extra_content = _Promise(mapping._extra_content)


class _AfterImport(MetaPathFinder):
    """Finds the table as always, and adds the promise to it once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != TABLE:
            return None
        sys.meta_path.remove(self)  # it comes once
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, own: Loader) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        _promise(module)

    def __getattr__(self, name: str) -> Any:  # whatever else a loader can do, such as give the source
        return getattr(self.own, name)


class _Moved(MetaPathFinder, Loader):
    """An old name imports the module that it has become: one module, two names."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        return ModuleSpec(name, self) if package == __package__ and rest in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{__package__}.{MOVED[spec.name.partition('.')[2]]}")
        spec.loader_state = module.__spec__  # which the import system is about to overwrite
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def lazy_names(
    package: str, home: dict[str, list[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package: ``home`` has the names of each module, under "" modules themselves."""
    modules = {name: module or name for module, names in home.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{modules[name]}")
        value = module if modules[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        return sorted([*vars(sys.modules[package]), *modules])

    return sorted(modules), get, directory


def install() -> None:
    """Make the promise, and know what has moved; calling it again does nothing."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
    if TABLE in sys.modules:
        _promise(sys.modules[TABLE])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
