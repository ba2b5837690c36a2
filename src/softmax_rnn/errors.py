"""The errors and the one warning that users meet. Each error is one sentence that says what to do."""

import math


def is_number(value: object) -> bool:
    """A finite number, and not True or False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class MechanismError(ValueError):
    """Something about a mechanism or its inputs is wrong; the sentence says what, and what to do instead."""


class MechanismWarning(UserWarning):
    """The mechanism is valid, but a part of it has no effect."""


class UserError(Exception):
    """A command was given something it cannot work with: the command line prints the sentence and exits with code 2."""
