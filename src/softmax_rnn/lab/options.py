"""Dataclasses from plain data and from the command line: a field is an option, and its annotation is its check.

The field ``steps`` of the group ``train`` is the option ``--train.steps``, the key ``train: {steps: 500}`` or ``train.steps: 500`` in
YAML, and a line of ``--help`` (from ``Args:`` in the dataclass's documentation). ``replaced`` is the only place where plain data
becomes a configuration. Nothing here knows what the options mean: ``config.py`` does.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union

from ..errors import UserError, did_you_mean
from ..files import parse_yaml

Plain = dict[str, Any]

T = typing.TypeVar("T")


def merge(into: Plain, values: Mapping[str, Any]) -> None:
    """Put nested values over others; a dotted key is a nested one."""
    for key, value in values.items():
        group, _, rest = key.partition(".")
        if rest:
            merge(into, {group: nested(rest, value)})
        elif isinstance(value, dict) and isinstance(into.get(key), dict) and not _is_value(value):
            merge(into[key], value)
        elif isinstance(value, dict):
            into[key] = {}
            merge(into[key], value)
        else:
            into[key] = value


def nested(key: str, value: Any) -> Plain:
    """``a.b`` and a value as {a: {b: value}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return typing.cast(Plain, value)


def nested_all(values: Mapping[str, Any]) -> Plain:
    """Values by dotted names as groups of options: the inverse of ``flat``.

    >>> nested_all({"seed": 1, "model.size": "nano"})
    {'seed': 1, 'model': {'size': 'nano'}}
    """
    out: Plain = {}
    merge(out, values)
    return out


def flat(config: Mapping[str, Any]) -> Plain:
    """Groups of options as ``group.option``; a mapping inside an option stays whole.

    >>> flat({"seed": 1, "model": {"overrides": {"hidden_size": 64}}})
    {'seed': 1, 'model.overrides': {'hidden_size': 64}}
    """
    out: Plain = {}
    for key, value in config.items():
        out |= {f"{key}.{option}": v for option, v in value.items()} if isinstance(value, dict) else {key: value}
    return out


def _is_value(value: Plain) -> bool:
    """A mechanism written out replaces the one before it as a whole."""
    return "kernel" in value


def replaced(config: T, values: Any) -> T:
    """A dataclass with some of its fields, and those of its groups, replaced; names and values are checked."""
    return typing.cast(T, _replaced(config, values, "", type(config)))


def _replaced(config: Any, values: Any, name: str, root: type) -> Any:
    if not isinstance(values, dict | None):
        raise UserError(f"{name} is a group of options, such as train: {{steps: 500}}, got {values!r}.")
    cls: type = type(config)
    kinds = _kinds(cls)
    changed = {}
    for key, value in (values or {}).items():
        path = f"{name}.{key}" if name else key
        if key not in kinds:
            raise UserError(f"Unknown option {path!r}: {nearest(path, root)}")
        old = getattr(config, key)
        changed[key] = _replaced(old, value, path, root) if is_dataclass(old) else convert(value, kinds[key], path)
    return cls(**{f.name: changed.get(f.name, getattr(config, f.name)) for f in fields(config)})


def nearest(name: str, root: type) -> str:
    """The end of a sentence about an unknown option: the one that is spelled most like it."""
    return did_you_mean(name, [option for option, _, _ in all_options(root)], "--help lists all.")


@cache
def _kinds(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns={"Any": Any})


def convert(value: Any, kind: Any, name: str) -> Any:
    """A value of YAML or the command line as what an option takes; anything else is refused with its name."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    for choice in choices:
        found = _as(value, choice)
        if found is not _NOTHING:
            return found
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."
    raise UserError(f"{name} must be {' or '.join(map(_describe, choices))}, got {shown}.")


_NOTHING = object()


def _as(value: Any, kind: Any) -> Any:
    """The value as this one type, or ``_NOTHING``."""
    if kind is type(None):
        return None if value is None or value in ("null", "none", "None") else _NOTHING
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else _NOTHING
    if kind is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        return value if isinstance(value, bool) else words.get(str(value).lower(), _NOTHING)
    if kind is int or kind is float:
        return _number(value, kind)
    if kind is str:
        return value if isinstance(value, str) and _is_clean(value) else _NOTHING
    if kind == list[str]:
        names = [w.strip() for w in value.strip("[] ").split(",")] if isinstance(value, str) else value
        return names if isinstance(names, list) and all(isinstance(w, str) for w in names) else _NOTHING
    wanted = typing.get_origin(kind) or kind
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = parse_yaml(value, "the option")
    return value if isinstance(value, wanted) and isinstance(value, dict | list) else _NOTHING


def _is_clean(text: str) -> bool:
    """Text that can be written to a file and used as a name: no zero bytes, and UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _number(value: Any, kind: type) -> Any:
    """YAML reads 1e-4 as text, and a count may be written 1e5."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 60:
        return _NOTHING
    try:
        if kind is int and (not isinstance(value, str) or re.fullmatch(r"\s*[+-]?[\d_]+\s*", value)):
            return int(value) if int(value) == value or isinstance(value, str) else _NOTHING
        number = float(value)
    except (ValueError, OverflowError):
        return _NOTHING
    if not math.isfinite(number) or (kind is int and number != int(number)):
        return _NOTHING
    return kind(number)


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(str, typing.get_args(kind)))
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return (
        words.get(kind)
        or {dict: "a table such as {a: 1}", list: "a list such as [a, b]"}[typing.get_origin(kind) or kind]
    )


@cache
def all_options(root: type) -> tuple[tuple[str, Any, str], ...]:
    """Every option: its dotted name, its type, and what it is for."""

    def of(cls: type, prefix: str) -> Iterator[tuple[str, Any, str]]:
        about = _documented(cls)
        for name, kind in _kinds(cls).items():
            if is_dataclass(kind):
                assert isinstance(kind, type)
                yield from of(kind, f"{name}.")
            else:
                yield f"{prefix}{name}", kind, about.get(name, "")

    return tuple(of(root, ""))


def full_name(name: str, root: type) -> str:
    """The dotted name of an option that is named by its last word: ``steps`` is ``train.steps``, because no other group has steps."""
    known = [option for option, _, _ in all_options(root)]
    groups = {option.partition(".")[0] for option in known if "." in option}
    if name in known or name.partition(".")[0] in groups:
        return name
    found = [option for option in known if option.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{name} may mean {' or '.join(found)}: give the one you mean, as in **{{{found[0]!r}: ...}}.")
    hint = did_you_mean(name, [option.rpartition(".")[2] for option in known], "softmax-rnn train --help lists all.")
    raise UserError(f"There is no option {name!r}: {hint}")


def _documented(cls: type) -> dict[str, str]:
    """The sentences under ``Args:`` in a dataclass's documentation."""
    _, _, text = (cls.__doc__ or "").partition("Args:")
    parts = re.split(r"\n        (\w+): ", text)
    return {name: " ".join(about.split()) for name, about in zip(parts[1::2], parts[2::2], strict=True)}


def add_options(parser: argparse.ArgumentParser, root: type, defaults: Plain) -> None:
    """Every option of a dataclass, in groups; ``defaults`` are for the help alone."""
    groups: dict[str, Any] = {"": parser}
    for name, kind, about in all_options(root):
        group, _, field = name.rpartition(".")
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
            parser.add_argument(f"--{group}", dest=group, metavar="TABLE", help=argparse.SUPPRESS)
        default = defaults[group][field] if group else defaults[field]
        shown = "" if default in (None, {}, []) else f" (default: {default})"
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if kind is bool else {}
        text = f"{about.rstrip('.')}{shown}".replace("%", "%%")
        groups[group].add_argument(f"--{name}", dest=name, metavar=field.upper(), help=text, **flag)


def typed_options(typed: argparse.Namespace, rest: list[str], root: type) -> Plain:
    """What was typed, nested; the entries of a table may be given one by one: --model.overrides.num_hidden_layers 3."""
    values: Plain = {}
    known = {name for name, _, _ in all_options(root)}
    for name, text in vars(typed).items():
        if name in known:
            merge(values, nested(name, text))
        elif is_dataclass(_kinds(root).get(name)):
            merge(values, {name: parse_yaml(text, f"--{name}")})
    tables = tuple(f"--{name}." for name, kind, _ in all_options(root) if typing.get_origin(kind) is dict)
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith(tables) else [word])]
    while words:
        word = words.pop(0)
        if not word.startswith(tables) or not words:
            name = word.partition("=")[0]
            file = "put a pattern of files, such as '*.txt', in quotes." if os.path.exists(name) else ""
            raise UserError(f"unrecognized arguments: {name}: {file or nearest(name.lstrip('-'), root)}")
        merge(values, nested(word[2:], parse_yaml(words.pop(0), word)))
    return values


def check_range(group: str, config: Any, **limits: tuple[float, float]) -> None:
    """Refuse numbers outside of their limits, ends included; None and words are not numbers."""
    for name, (least, most) in limits.items():
        value = getattr(config, name)
        if isinstance(value, int | float) and not least <= value <= most:
            path = f"{group}.{name}".removeprefix(".")
            raise UserError(f"{path} must be from {_shown(least)} to {_shown(most)}, got {value}.")


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
