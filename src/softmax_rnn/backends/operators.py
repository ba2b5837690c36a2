"""One way to make an operator from its forward pass, its backward pass and a plain version.

    plain     ordinary torch code, differentiated by autograd: right under every transformation, and readable
    forward   the same numbers, fast or with little memory
    backward  (gradients of the outputs, inputs, outputs) -> gradients of the leading inputs

An operator called by itself or under autograd runs ``forward`` and ``backward``, which torch.compile sees as two opaque calls. Under
anything else that wants to look inside (forward-mode derivatives and all of ``torch.func``: grad, vjp, jvp, vmap, jacrev and any nesting of
them) it runs ``plain``, with the memory that this takes; so do pointwise operators under torch.compile, which fuses them.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import __version__


def transformed() -> bool:
    """Is somebody watching who needs ordinary torch code: forward mode, or a transformation of ``torch.func``?"""
    # By its type: torch.compile wraps the None that is returned outside of transformations.
    inside = isinstance(torch._C._functorch.peek_interpreter_stack(), torch._C._functorch.CInterpreter)
    return inside or forward_ad._current_level >= 0


def tracing() -> bool:
    """Must no value be looked at: while compiling, or inside a transformation?"""
    return torch.compiler.is_compiling() or transformed()


class Operator:
    """What ``operator`` returns: call it."""

    def __init__(self, run: Callable[..., Any], plain: Callable[..., Any], fuse: bool) -> None:
        self.run, self.plain, self.fuse = run, plain, fuse

    def __call__(self, *arguments: Any) -> Any:
        """Run it, in the way that fits who is watching."""
        if transformed() or (self.fuse and torch.compiler.is_compiling()):
            return self.plain(*arguments)
        return self.run(*arguments)


def operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Tensor | None, ...]],
    *,
    plain: Callable[..., Any],
    fake: Callable[..., Any],
    fake_backward: Callable[..., tuple[Tensor, ...]] | None = None,
    fuse: bool = False,
    constants: int = 0,
) -> Operator:
    """An operator ``softmax_rnn::name``.

    Args:
        forward: annotated with types; returns a tensor or a tuple of tensors.
        backward: takes the gradients of the outputs (None where nobody asked), then the inputs, then the outputs, and returns the gradients
            of the leading tensor inputs, as many as it returns.
        plain: the same function in ordinary torch code.
        fake, fake_backward: empty results of the right shape, dtype and strides; by default gradients are like their inputs.
        constants: how many of the last outputs have no gradient.
        fuse: let torch.compile see ``plain`` (pointwise code that it can merge with what is around).
    """
    single = "tuple" not in str(inspect.signature(forward).return_annotation).lower()
    parameters = list(inspect.signature(forward).parameters.values())
    count, outputs = len(parameters), 1 if single else _tuple_length(forward)
    gradients = _tuple_length(backward)

    run = torch.library.custom_op(f"softmax_rnn::{name}", forward, mutates_args=())
    run.register_fake(fake)

    def like_inputs(*args: Any) -> tuple[Tensor | None, ...]:
        return tuple(None if x is None else torch.empty_like(x) for x in args[outputs : outputs + gradients])

    run_backward = torch.library.custom_op(
        f"softmax_rnn::{name}_backward",
        lambda *args: _results(backward(*args), args),
        mutates_args=(),
        schema=_backward_schema(parameters, outputs, gradients),
    )
    run_backward.register_fake(lambda *args: _results((fake_backward or like_inputs)(*args), args))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        made = (output,) if single else tuple(output)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*made[outputs - constants :])
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.is_tensor = [isinstance(x, Tensor) for x in inputs]
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *made)

    def differentiate(ctx: Any, *grads: Tensor | None) -> Any:
        if all(g is None for g in grads):
            return (None,) * count
        saved = list(ctx.saved_tensors)
        made = saved[len(saved) - outputs :]
        tensors = iter(saved)
        inputs = [next(tensors) if there else x for there, x in zip(ctx.is_tensor, ctx.others, strict=True)]
        with chosen_precision(made[0]):
            found = run_backward(*grads, *inputs, *made)
        found = (found,) if gradients == 1 else found
        wanted = [g if there else None for g, there in zip(found, ctx.is_tensor, strict=False)]
        return (*wanted, *(None,) * (count - gradients))

    run.register_autograd(differentiate, setup_context=setup)
    return Operator(run, plain, fuse)


def _results(found: tuple[Tensor | None, ...], args: tuple[Any, ...]) -> Any:
    """Gradients as an operator may return them: never one of its inputs, and something empty for an input that is None."""
    given = {id(x) for x in args if isinstance(x, Tensor)}
    some = next(x for x in found if x is not None)
    out = tuple(some.new_empty(0) if x is None else x.clone() if id(x) in given else x for x in found)
    return out[0] if len(out) == 1 else out


def _tuple_length(function: Callable[..., Any]) -> int:
    kind = typing.get_type_hints(function)["return"]
    return len(typing.get_args(kind)) or 1


def _backward_schema(parameters: list[inspect.Parameter], outputs: int, gradients: int) -> str:
    names = [f"Tensor? grad{i}" for i in range(outputs)]
    names += [f"{_SCHEMA[str(p.annotation)]} {p.name}" for p in parameters]
    names += [f"Tensor output{i}" for i in range(outputs)]
    returns = ", ".join(["Tensor"] * gradients)
    return f"({', '.join(names)}) -> ({returns})"


# Graphs that another version left in torch's cache on disk call these operators with other arguments.
torch.compiler.config.cache_key_tag += f" softmax_rnn {__version__}"

_SCHEMA = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "bool": "bool",
    "int": "int",
    "float": "float",
    "float | None": "float?",
    "Sequence[float]": "float[]",
    "Sequence[int]": "int[]",
}


def chosen_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast ends at the door of ``attention``: a context in which it does not touch operations on the device of ``x``.

    Without it, autocast would turn the float32 matrix products of states and denominators back into bfloat16 ones.
    """
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """float32 tensors in autocast's dtype where it is on, as for torch's own attention; others as they are."""
    if not all(isinstance(x, Tensor) for x in tensors):
        return tensors  # the checks that follow say what is wrong
    device = tensors[0].device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return tensors
    low = torch.get_autocast_dtype(device)
    return tuple(x.to(low) if x.dtype == torch.float32 else x for x in tensors)
