"""Code of your own: `my_net.py:build`, `my.package:Net`, `my_net.py:build(num_classes=5)`. It is run, on your word."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fmapviz.checkpoints import load_weights
from fmapviz.errors import RequestError, quote, suggest
from fmapviz.initialization import NoInitialization, read_seed
from fmapviz.layers import unwrap
from fmapviz.own_code import blame_the_user, code_beside, import_place
from fmapviz.own_networks import check_network, describe_network
from fmapviz.references import Reference, parse_reference

if TYPE_CHECKING:
    from types import ModuleType

    from fmapviz.options import InputOptions
    from fmapviz.values import Model

# A file that ends in .py, or a module's dotted name; then a colon and what is wanted of it. URLs are neither.
SPELLING = r"(?!\w+://)(?:.+\.py(?::.*)?|[^\W\d][\w.]*:[^\W\d].*)"


def load(name: str, *, weights: str, options: InputOptions) -> Model:
    """Run the user's code, and fill in weights if a file is named.

    Args:
        name: See `fmapviz.references`.
        weights: `default`: as the code builds the network, after `torch.manual_seed(0)`; `random`, `random:SEED`: as it does
            after that seed; or a file or URL of a checkpoint.
        options: What the user wants otherwise in the preparation of pictures.

    Raises:
        RequestError: There is no such code, or it gives no network that takes images.
        UserCodeError: It raises an exception.
        WeightsError: The weights cannot be had, read or fitted in.
    """
    seed = read_seed(weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        home, module = _build(parse_reference(name))
    label, classes, notices = "weights as built", tuple[str, ...](), tuple[str, ...]()
    if seed is not None:
        label = f"random weights, seed {seed}"
    elif weights != "default":
        loaded = load_weights(module, weights, known=("default", "random", "random:SEED"))
        label, classes, notices = loaded.name, loaded.classes, loaded.notices
    return describe_network(
        module,
        name=name,
        weights=label,
        options=options,
        code=code_beside(home),
        home=home,
        classes=classes,
        notices=notices,
    )


def outline(name: str, *, options: InputOptions) -> Model:
    """Run the user's code without initialising what it builds, and move that to the meta device."""
    with NoInitialization():
        home, module = _build(parse_reference(name))
    return describe_network(module.to("meta"), name=name, weights="no weights", options=options, code=None, home=home)


def _build(reference: Reference) -> tuple[ModuleType, nn.Module]:
    """Import the module, and have it build the network."""
    home = import_place(reference)
    target = _find(home, reference)
    if not isinstance(target, nn.Module):
        target = _call(target, reference)
    elif reference.arguments:
        raise RequestError(f"a network already, not a function that builds one: {quote(reference.name)}")
    if not isinstance(target, nn.Module):
        raise RequestError(
            f"{quote(reference.name)} gave an object of type {type(target).__name__}, not an nn.Module",
            hint="return the network itself",
        )
    network = unwrap(target)
    check_network(network)
    return home, network


def _find(home: ModuleType, reference: Reference) -> Any:
    # Any: whatever the user's module holds.
    found: Any = home
    for part in reference.attribute.split("."):
        if not hasattr(found, part):
            known = [name for name, value in vars(home).items() if _may_build(value, home)]
            raise RequestError(
                f"no {quote(reference.attribute)} in {quote(reference.place)}",
                hint=suggest(reference.attribute, known) or f"there are: {', '.join(known) or 'no functions or classes'}",
            )
        found = getattr(found, part)
    return found


def _may_build(value: object, home: ModuleType) -> bool:
    if isinstance(value, type):
        return issubclass(value, nn.Module) and not value.__module__.startswith("torch.")
    own = getattr(value, "__module__", None) == home.__name__
    return isinstance(value, nn.Module) or (own and callable(value))


def _call(target: Any, reference: Reference) -> object:
    # Any: as above.
    arguments = dict(reference.arguments or {})
    if not callable(target):
        raise RequestError(f"no function, class or network: {quote(reference.name)} is of type {type(target).__name__}")
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # C code
        signature = None
    try:
        if signature is not None:
            signature.bind(**arguments)
    except TypeError as error:
        raise RequestError(
            f"{quote(reference.name)} cannot be called so: {error}",
            hint=f"it is {reference.attribute}{signature}; arguments are given as '{reference.name}(width=2)'",
        ) from error
    with blame_the_user(reference.name):
        return target(**arguments)


def known_names() -> list[str]:
    """Nothing: nobody knows what code there is."""
    return []
