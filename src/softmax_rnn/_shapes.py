"""Shapes in types. Annotations such as ``Float[Tensor, "b h t d"]`` document the public functions; they are checked
at run time only where ``SOFTMAX_RNN_CHECK_SHAPES`` is set (the test suite sets it) and jaxtyping is installed."""

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:

        class Float:
            """Stands for ``torch.Tensor`` where jaxtyping is not installed."""

            def __class_getitem__(cls, item: Any) -> type:
                return Tensor

        Bool = Int = Float

__all__ = ["Bool", "Float", "Int", "Tensor", "checked"]

F = TypeVar("F", bound=Callable[..., Any])


def checked(function: F) -> F:
    """Check the annotated shapes of ``function`` while tests run; otherwise return it unchanged."""
    if not os.environ.get("SOFTMAX_RNN_CHECK_SHAPES"):
        return function
    from beartype import beartype
    from jaxtyping import jaxtyped

    strict = jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.compiler.is_compiling() else strict)(*args, **kwargs)

    return wrapper  # type: ignore[return-value]
