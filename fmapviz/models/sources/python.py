"""User code, which is run: `my_net.py:build`, `my.package:Net`, `my_net.py:build(num_classes=5)`."""

from __future__ import annotations

import inspect
import sys
from contextlib import chdir, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fmapviz.core.recorded_code import is_foreign
from fmapviz.core.user_code import (
    CodeReference,
    find_in,
    import_module_of,
    imported_files_beside,
    parse_reference,
    running_user_code,
)
from fmapviz.errors import RequestError, printable, quote, suggest
from fmapviz.models.initialization import NoInitialization, read_seed, seeded
from fmapviz.models.network import check_network, check_values, describe_network, find_inputs
from fmapviz.models.weights.file import weights_only
from fmapviz.models.weights.fit import LoadedWeights, load_weights
from fmapviz.observe.layers import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from torch import Tensor

    from fmapviz.config import InputOptions
    from fmapviz.data import Model

# A file that ends in .py, or a module's dotted name; then a colon and an attribute. Neither is a URL.


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Run user code, and fill the network that it returns with weights if a file is named; see `ModelSource`.

    With `default` and `random` the weights are those that the code builds after `torch.manual_seed(0)`, with `random:SEED`
    after that seed. A function `call(network, images)` of the same module is the forward pass.
    """
    with NoInitialization() if weights is None else seeded(read_seed(weights) or 0):
        home, module, forward = _build(name)
    notice = f"weights as built by {printable(parse_reference(name).name)}; weights=FILE loads a checkpoint"
    as_built = LoadedWeights(module, "weights as built", notices=(notice,))
    loaded = as_built if weights == "default" else load_weights(weights, lambda: module)
    if weights is not None:
        check_values(loaded.module)
    code = None if weights is None else imported_files_beside(home)
    return describe_network(loaded, name=name, preprocessing=preprocessing, code=code, home=home, forward=forward)


def find_call(home: ModuleType) -> Callable[[nn.Module, Tensor], object] | None:
    """Return the function `call(network, images)` of the module that builds a network; None if there is none.

    Raises:
        RequestError: It does not take a network and a batch of images, and nothing else.
    """
    found: Any = getattr(home, "call", None)
    if isinstance(found, FunctionType) and found.__module__.partition(".")[0] in sys.stdlib_module_names:
        return None  # `subprocess.call`
    if not isinstance(found, FunctionType | partial):  # `unittest.mock.call`, for example
        return None
    signature = inspect.signature(found)
    try:
        signature.bind(object(), object())
    except TypeError as error:
        raise RequestError(
            f"the function beside the network does not take a network and a batch of images: call{signature}",
            hint="def call(network, images): return network(images, ...)",
        ) from error
    return cast("Callable[[nn.Module, Tensor], object]", found)


def _build(name: str) -> tuple[ModuleType, nn.Module, Callable[[nn.Module, Tensor], object] | None]:
    """Return the imported module, the network, and the function that calls it."""
    reference = parse_reference(name)
    home = import_module_of(reference)
    forward = find_call(home)
    target = find_in(home, reference, _builders_in(home))
    if isinstance(target, nn.Module) and reference.arguments:
        raise RequestError(
            f"{quote(reference.name)} is a network already: it takes no arguments", hint=f"type {printable(reference.name)}"
        )
    return home, build_network(target, reference, home, is_called=forward is None), forward


# Any: what the reference leads to.
def build_network(
    target: Any,
    reference: CodeReference,
    home: ModuleType,
    *,
    is_called: bool = True,
    hint: str = "return the network itself",
) -> nn.Module:
    """Call user code that builds a network, and return the network without its wrappers.

    Args:
        target: A function, a class or a network.
        reference: Refers to it.
        home: The module that defines it.
        is_called: Whether the network is called with a batch; False: a function calls it.
        hint: Hint for an object of another type.

    Raises:
        RequestError: It is not called this way, or returns no network that takes a batch of images.
        UserCodeError: It failed.
    """
    built = target if isinstance(target, nn.Module) else _call(target, reference, home)
    if not isinstance(built, nn.Module):
        message = f"{quote(reference.name)} returned an object of type {type(built).__name__}, not an nn.Module"
        raise RequestError(message, hint=hint or "return the network itself")
    network = unwrap(built)
    check_network(network, is_called=is_called, shape=find_inputs([network, home]))
    return network


def _builders_in(home: ModuleType) -> list[str]:
    return [name for name, value in vars(home).items() if _may_build(value, home)]


def _may_build(value: object, home: ModuleType) -> bool:
    if isinstance(value, type):
        return issubclass(value, nn.Module) and not value.__module__.startswith("torch.")
    own = getattr(value, "__module__", None) == home.__name__
    return isinstance(value, nn.Module) or (own and callable(value))


def _call(target: Any, reference: CodeReference, home: ModuleType) -> object:
    # Any: as above.
    arguments = dict(reference.arguments or {})
    if not callable(target):
        raise RequestError(
            f"not a function, class or network: {quote(reference.name)} is of type {type(target).__name__}",
            hint=f"there are: {', '.join(_builders_in(home)) or 'no functions or classes'}",
        )
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # C code
        signature = None
    try:
        if signature is not None:
            signature.bind(**arguments)
    except TypeError as error:
        raise RequestError(
            f"cannot call {printable(reference.name)} this way: {error}",
            hint=_suggest_call(reference, cast("inspect.Signature", signature)),
        ) from error
    with running_user_code(reference.name), _without_files(reference, target):
        return target(**arguments)


@contextmanager
def _without_files(reference: CodeReference, target: object) -> Iterator[None]:
    """Keep files of default names and pickled objects from a class of an installed package that a record names."""
    if not is_foreign(reference.module, target):
        yield
        return
    with TemporaryDirectory() as empty, chdir(empty), weights_only():
        yield


def _suggest_call(reference: CodeReference, signature: inspect.Signature) -> str:
    """Return a hint for a call that does not fit: an argument of a similar name, or the missing ones."""
    unknown = (name for name in reference.arguments or {} if name not in signature.parameters)
    near = next(filter(None, (suggest(name, signature.parameters) for name in unknown)), None)
    name = next(iter(signature.parameters), "")
    example = f"; pass arguments as '{printable(reference.name)}({name}=...)'" if name else ""
    return f"its signature is {reference.attribute}{signature}{f'; {near}' if near else example}"
