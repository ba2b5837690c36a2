"""The errors and the one warning that users meet. Each error is one sentence that says what to do."""

import contextlib
import math
import os
from pathlib import Path


def is_number(value: object) -> bool:
    """A finite number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class MechanismError(ValueError):
    """Something about a mechanism or its inputs is wrong; the sentence says what, and what to do instead."""


class MechanismWarning(UserWarning):
    """The mechanism is valid, but a part of it has no effect."""


class UserError(Exception):
    """A command was given something it cannot work with: the command line prints the sentence and exits with code 2."""


def check_folder(folder: Path, option: str, megabytes: int = 8) -> None:
    """Refuse, before any work, a folder that cannot be made, written to, or filled with so much; leave nothing behind."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]  # innermost first
    probe = folder / f".softmax-rnn-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(megabytes * 2**20))
    except FileExistsError:
        raise UserError(f"{folder} is a file: give a folder with {option}.") from None
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror}): give another folder with {option}.") from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
        for p in made:
            with contextlib.suppress(OSError):
                p.rmdir()
