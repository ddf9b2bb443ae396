"""Sharded variables of a Keras network, which its layers gather when they read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding

if TYPE_CHECKING:
    import keras

Result = TypeVar("Result")

# The name of what is gathered, for a policy that does not keep it until the backward pass.
GATHERED = "gathered"


class Gathering:
    """Gathers the variables of a network where its layers read them, in the precision of the layer.

    A layer that computes its activations again for the gradient (keras.RematScope) then gathers its variables again,
    too; gathering all of them before the network is called would keep them until then.
    """

    def __init__(self, variables: list[keras.Variable], layouts: list[NamedSharding], whole: NamedSharding) -> None:
        self._is_on = False
        for variable, layout in zip(variables, layouts, strict=True):
            vars(variable).pop("_maybe_autocast", None)  # of an earlier stage of the training
            if layout != whole:
                self._gather(variable, layout, whole)

    def __call__(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Return a function in whose calls variables are gathered."""

        def call(*arguments: Any) -> Result:
            self._is_on = True
            try:
                return function(*arguments)
            finally:
                self._is_on = False

        return call

    def _gather(self, variable: keras.Variable, layout: NamedSharding, whole: NamedSharding) -> None:
        gather, cast = _gather(layout, whole), variable._maybe_autocast
        variable._maybe_autocast = lambda value: gather(cast(value)) if self._is_on else cast(value)


def _gather(layout: NamedSharding, whole: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Return a function that gathers an array; its gradient has the array's layout, unlike that of a constraint."""

    @jax.custom_vjp
    def gather(part: jax.Array) -> jax.Array:
        return checkpoint_name(jax.lax.with_sharding_constraint(part, whole), GATHERED)

    def forward(part: jax.Array) -> tuple[jax.Array, None]:
        return gather(part), None

    def backward(_: None, gradient: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.with_sharding_constraint(gradient, layout),)

    gather.defvjp(forward, backward)
    return gather
