"""Reading and writing what users name: whatever is wrong with a file is one sentence with its path.

Every command reads text, YAML and JSON through here, and asks here whether it can write before it begins to work.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UserError

PIPE_SECONDS = 10.0  # how long a pipe may stay silent before its first byte
MOST_NODES = 1_000_000  # of a YAML or JSON file, with every alias written out

MOST_LEVELS = 100


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, of a pipe such as ``<(zcat text.gz)``, or of standard input (``-``)."""
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        kind = os.stat(path).st_mode
        if stat.S_ISFIFO(kind):
            return _read_pipe(path)
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind) and not _is_input(path):
            raise UserError(f"Cannot read {path}: it is neither a file nor a pipe.")
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except ValueError:  # a zero byte in the name
        raise UserError(f"Cannot read {str(path)!r}: that is not a name of a file.") from None


def _is_input(path: str | Path) -> bool:
    """A terminal or socket that a shell has opened for us."""
    return str(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))


def _read_pipe(path: str | Path) -> bytes:
    """All that is written to a pipe; refused, rather than waited for, if nobody writes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not select.select([descriptor], [], [], PIPE_SECONDS)[0]:
            raise UserError(f"Cannot read {path}: nobody has written to this pipe for {PIPE_SECONDS:.0f} seconds.")
        os.set_blocking(descriptor, True)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text in UTF-8 (byte {error.start + 1}): convert it first, for example with iconv."
        ) from None


def read_yaml(path: str | Path) -> Any:
    """The content of a YAML file: plain data, of a reasonable size, without loops."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """YAML as plain data; ``name`` is where the text comes from."""
    import yaml

    loader = _loader(name)
    try:
        _check_depth(text, name, loader)
        value = yaml.load(io.StringIO(text), loader)
        check_plain(value, name)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:  # a date such as 2000-13-45
        raise UserError(f"{name} is not YAML that can be used: {error}") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply.") from None
    return value


def _loader(name: str) -> Any:
    """YAML's own, which lets the last of two values win in silence, but for that."""
    import yaml

    fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times as fast, where libyaml is there

    class Loader(fast):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    raise UserError(
                        f"{name} has {key.value!r} a second time in line {key.start_mark.line + 1}: keep one."
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _check_depth(text: str, name: str, loader: Any) -> None:
    """libyaml builds nested values with the processor's own stack, and dies when that is full: count before."""
    import yaml

    if sum(map(text.count, "[{-?:")) < 1000:
        return  # cannot be deep
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_LEVELS:
            raise UserError(f"{name} is nested too deeply.")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def check_plain(value: Any, name: str) -> None:
    """Refuse what cannot be written back: loops, keys that are no text, aliases that multiply without end."""
    left = MOST_NODES

    def visit(value: Any, above: tuple[int, ...]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise UserError(f"{name} is too large for a configuration.")
        if len(above) > MOST_LEVELS:
            raise UserError(f"{name} is nested too deeply.")
        if id(value) in above:
            raise UserError(f"{name} contains itself: an alias (*) points to something around it.")
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise UserError(f"{name} has the key {key!r}, which is no text: write it in quotes.")
                visit(item, (*above, id(value)))
        elif isinstance(value, list):
            for item in value:
                visit(item, (*above, id(value)))
        elif value is not None and not isinstance(value, str | int | float | bool):
            raise UserError(f"{name} has {value!s}, a {type(value).__name__}, where text or a number belongs.")

    visit(value, ())


@contextlib.contextmanager
def writing(place: str | Path, advice: str = "make room, or choose another place") -> Iterator[None]:
    """Whatever goes wrong with the disk in here is one sentence about ``place``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot write to {place} ({error.strerror or error}): {advice}.") from None
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise UserError(f"Cannot write to {str(place)!r}: that is not a name of a folder.") from None


def check_folder(folder: Path, option: str, megabytes: int = 8) -> None:
    """Refuse, before any work, a folder that cannot be made, written to, or filled with so much; leave nothing behind."""
    new = [p for p in (folder, *folder.parents) if not os.path.lexists(p)]  # innermost first
    probe = folder / f".softmax-rnn-{os.getpid()}"
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: give a folder with {option}.")
        with writing(folder, f"give another folder with {option}"):
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(bytes(megabytes * 2**20))
    finally:
        with contextlib.suppress(OSError, ValueError):
            probe.unlink(missing_ok=True)
        for p in new:
            with contextlib.suppress(OSError, ValueError):
                p.rmdir()


def write_atomically(path: Path, text: str) -> None:
    """The old file or the new one, never a part of either."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    fsync(new)
    os.replace(new, path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_hub(name: str, kind: str, instead: str) -> None:
    """Ask the hub for ``name`` once, briefly: unreachable, missing and gated each get a sentence that says what to do."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        HfApi().repo_info(name, repo_type=kind, timeout=5)
    except GatedRepoError:
        raise UserError(
            f"The {kind} {name} is gated: accept its terms at https://huggingface.co/{name}, then log in with `hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"The hub has no {kind} {name}, or you have no access to it: check the name, or log in with `hf auth login`."
        ) from None
    except Exception as error:
        raise UserError(
            f"Cannot reach the Hugging Face hub for {name} ({type(error).__name__}): go online, or {instead}."
        ) from None


def nearest_name(path: str | Path) -> str:
    """The end of a sentence about something that is not there: what is called much like it, beside it or among the runs."""
    path = Path(path)
    for folder in dict.fromkeys((path.parent, Path("runs"))):
        try:
            names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        except (OSError, ValueError):
            continue
        begins = [name for name in names if path.name and name.startswith(path.name)]
        short = {
            re.sub(r"-[0-9a-f]{10}$", "", name): name for name in reversed(names)
        }  # as one types the name of a run
        close = difflib.get_close_matches(path.name, [*names, *short], n=1, cutoff=0.6)
        near = begins or [short.get(name, name) for name in close]
        if near:
            return f": did you mean {folder / near[0]}?"
    return "."
