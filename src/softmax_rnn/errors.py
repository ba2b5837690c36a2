"""The errors and the one warning that users meet, and how any error becomes one printable sentence.

Each error is one sentence: what was given, what was expected, what to do. ``sentence`` covers what a user can cause without
meeting one of our checks: a full disk, a file that is not text, too little memory. It returns None for everything else, which is
a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import math
import sys
from collections.abc import Iterable


def is_number(value: object) -> bool:
    """A finite number, and not True or False."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


class MechanismError(ValueError):
    """Something about a mechanism or its inputs is wrong; the sentence says what, and what to do instead."""


class MechanismWarning(UserWarning):
    """The mechanism is valid, but a part of it has no effect."""


class UserError(Exception):
    """A command was given something it cannot work with: the command line prints the sentence and exits with code 2."""


ADVICE = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "close some files, or raise the limit (ulimit -n)",
}


def printable(text: object) -> str:
    r"""Text that cannot move a terminal's cursor or change its title: control characters become escapes.

    >>> print(printable("a name\x1b[2J"))
    a name\x1b[2J
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def one_line(text: object) -> str:
    r"""Printable, and on one line.

    >>> one_line("first\n  second\x07")
    'first second\\x07'
    """
    return printable(" ".join(str(text).split()))


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str, most: int = 1, cutoff: float = 0.6) -> str:
    """The end of a sentence about a name that nobody knows: those spelled most like it, or else ``otherwise``.

    >>> did_you_mean("sofmax", ["softmax", "norm"], "known are softmax and norm.")
    'did you mean softmax?'
    """
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def sentence(error: BaseException) -> str | None:
    """What to tell the user about an error that the user can have caused; None if it is a defect of ours."""
    if isinstance(error, UserError | MechanismError):
        return one_line(error)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("softmax_rnn"):
        return f"needs the package {error.name}: pip install 'softmax-rnn[lab,report]'"
    if isinstance(error, OSError):
        return one_line(_of_the_system(error))
    if isinstance(error, UnicodeError):
        return one_line(f"Something that was read is not text in UTF-8 ({error}).")
    if isinstance(error, RecursionError):
        return "Something that was read is nested too deeply."
    if _is_out_of_memory(error):
        return f"There is not enough memory: {one_line(error) or 'take something smaller'}"
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "A path has a zero byte in it: give another."
    yaml = sys.modules.get("yaml")
    if yaml is not None and isinstance(error, yaml.YAMLError):
        return one_line(f"Not YAML: {error}")
    return None


def _of_the_system(error: OSError) -> str:
    """``FILE: No space left on device: make room there.``"""
    said = error.strerror or str(error).partition("\n")[0] or type(error).__name__
    place = f"{error.filename}: " if error.filename is not None else ""
    advice = f": {ADVICE[error.errno]}" if error.errno in ADVICE else ""
    return f"{place}{said}{advice}."


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(t in str(error) for t in ("can't allocate memory", "out of memory"))
    )
