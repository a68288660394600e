"""List layers and select them by glob and type."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from inspect import isfunction
from typing import TYPE_CHECKING

from torch import export, jit, nn

from fmapviz.config import check_type, split
from fmapviz.core.words import are, counted
from fmapviz.data import Layer, Model
from fmapviz.errors import RequestError, first_few, nearest, quote, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable


_NAMES = "names or globs, such as 'layer4.*'"
_OTHER_TYPES = ("Conv1d", "Linear")  # of networks without the default ones
_FEW = 20  # names of layers that fit into a hint
_UNCHANGED = (nn.Identity, nn.modules.dropout._DropoutNd)  # these return their input
_VECTORS = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag)
_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile`, `DataParallel`, `DistributedDataParallel` and `ultralytics.YOLO`.

    The wrapped network shares its modules and parameters with the wrapper; the names of its layers are
    without `_orig_mod.` and `module.`.

    Raises:
        RequestError: A scripted or exported program, whose convolutions are no Python modules that a hook could see.
    """
    if isinstance(model, export.ExportedProgram | jit.ScriptModule | jit.ScriptFunction):
        raise RequestError(
            f"cannot hook a {type(model).__name__}: hooks need Python modules",
            hint="pass the nn.Module it was made from",
        )
    if not isinstance(model, nn.Module):
        raise RequestError(f"not an nn.Module: {quote(type(model).__name__)}", hint=_hint_for(model))
    if any(type(part).__name__ == "GuardsFn" for part in model.children()):
        raise RequestError(
            f"the graph of torch.export calls no layers that could be hooked: {type(model).__name__}",
            hint="pass the nn.Module it was exported from; torch.export.load(FILE).state_dict holds its weights",
        )
    inner = getattr(model, "_orig_mod", None)  # torch.compile
    if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    if inner is None and _is_of_ultralytics(model):
        inner = model.model
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def _is_of_ultralytics(model: nn.Module) -> bool:
    """Return True for `YOLO` and its kin, whose forward pass takes files and draws boxes."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "ultralytics.engine.model.Model" for kind in type(model).__mro__)


def _hint_for(model: object) -> str:
    """Return a hint for an argument that is no network."""
    hint = "a torch.nn.Module, such as torchvision.models.resnet18()"
    if isinstance(model, str):
        hint = f"fmapviz.load_model({quote(model)}) returns one"
    elif isinstance(model, Model):
        hint = "its attribute module is one"
    elif isinstance(model, Mapping):
        hint = "build the network, and fill it: network.load_state_dict(...)"
    elif isinstance(model, Enum):
        hint = f"fmapviz.load_model(NAME, weights={quote(model.name)}) loads one with these weights"
    elif isinstance(model, type) and issubclass(model, nn.Module):
        hint = f"create an instance: {model.__name__}()"
    elif isfunction(model):
        hint = f"pass what it returns: {model.__name__}()"
    return hint


def find_layers(model: nn.Module) -> list[Layer]:
    """List every module of a network once, in the order of definition, without the network itself.

    Example:
        >>> block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        >>> [(layer.name, layer.type) for layer in find_layers(block)]
        [('0', 'Conv2d'), ('1', 'ReLU')]
    """
    paths = defaultdict(list)
    places: dict[str, tuple[str, str]] = {}
    for prefix, module in model.named_modules():
        for name, child in module._modules.items():  # named_children() would hide a child's second name
            path = f"{prefix}.{name}" if prefix else name
            paths[child].append(path)
            places.setdefault(path, (prefix, name))  # names do not show it: those of children may have dots
    aliases: dict[str, tuple[str, ...]] = {"": ()}
    layers = []
    for name, module in model.named_modules():
        if name:
            parent, own = places[name]
            inherited = (f"{alias}.{own}" for alias in aliases[parent])
            aliases[name] = (*(path for path in paths[module] if path != name), *inherited)
            layers.append(Layer(name, type(module).__name__, module, aliases[name]))
    return layers


def select_layers(
    layers: Sequence[Layer],
    *,
    types: str | Iterable[str] = (),
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    any_type: bool = False,
) -> list[Layer]:
    """Choose layers by type and name; each of these is one or several, also in one text with commas.

    Args:
        layers: All layers, see `find_layers`.
        types: Class names, matched through base classes: `Conv2d` also finds a subclass of it. None means `default_types`.
            Of several some may be missing, see `absent_types`.
        include: Globs over dotted names; `*` also spans dots. A layer's name chooses it whatever its type. None means all.
        exclude: Globs of names to leave out again.
        any_type: Whether a glob that fits no layer of the types may name any other.

    Returns:
        The chosen ones in the order given.

    Raises:
        RequestError: Types or a glob that fit nothing, or a choice that leaves nothing.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        >>> [layer.name for layer in select_layers(find_layers(net), exclude=["0"])]
        ['2']
    """
    types = split(check_type("types", types, Sequence[str], hint="class names, such as 'Conv2d'")) or default_types(layers)
    include = split(check_type("layers", include, Sequence[str], hint=_NAMES))
    exclude = split(check_type("exclude", exclude, Sequence[str], hint=_NAMES))
    include = tuple(
        pattern if any(_matches(layer, [pattern]) for layer in layers) else layer_of(pattern) for pattern in include
    )
    typed = [layer for layer in layers if any(is_type(layer, name) for name in types)]
    named = {name for layer in layers for name in (layer.name, *layer.aliases)}
    free = [  # of any type
        pattern
        for pattern in include
        if pattern in named or (any_type and not any(_matches(each, [pattern]) for each in typed))
    ]
    if not typed and not free:
        raise RequestError(
            f"no layer of this type in the model: {quote(types[0])}",
            hint=_hint_for_types(layers, types[0]),
        )
    for pattern in include:
        _check_glob(layers, layers if pattern in free else typed, pattern, types)
    wanted = {layer.name for layer in typed if not include or _matches(layer, include)}
    chosen = [layer for layer in layers if layer.name in wanted or _matches(layer, free)]
    chosen = [layer for layer in chosen if not _matches(layer, exclude)]
    if not chosen:
        left_out = first_few([*map(quote, exclude)])
        raise RequestError(
            f"no layer is left: all are excluded by {left_out}", hint="fmapviz.list_layers(model) lists the layers"
        )
    return chosen


def select_modules(
    layers: Sequence[Layer], types: Iterable[str], include: Iterable[str], exclude: Iterable[str]
) -> frozenset[str]:
    """Return the names of the chosen modules, and of those within them.

    Args:
        layers: See `find_layers`.
        types: Class names; none means any.
        include: Globs over dotted names; none means all.
        exclude: Globs of modules to leave out again, with what is in them.

    Raises:
        RequestError: Types or a glob that fit nothing.
    """
    chosen = {layer.name for layer in select_layers(layers, types=types or ("Module",), include=include)}
    left_out = {layer.name for layer in layers if _matches(layer, split(exclude))}

    def is_within(name: str, outer: set[str]) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:count]) in outer for count in range(1, len(parts) + 1))

    return frozenset(layer.name for layer in layers if is_within(layer.name, chosen) and not is_within(layer.name, left_out))


def absent_types(layers: Sequence[Layer], types: Iterable[str]) -> list[str]:
    """List the class names that no layer's class or base has: one list of types may serve many networks.

    Example:
        >>> absent_types(find_layers(nn.Sequential(nn.ReLU())), ["ReLU", "Block"])
        ['Block']
    """
    return [name for name in types if not any(is_type(layer, name) for layer in layers)]


def _hint_for_types(layers: Sequence[Layer], wanted: str) -> str:
    """Return the types of a network, for a type that it lacks."""
    if any(_matches(layer, [wanted]) for layer in layers):
        return f"this is the name of a layer, no type: layers={wanted!r}"
    known, block = sorted({layer.type for layer in layers}), repeated_block(layers)
    there_are = f"there are: {', '.join(known[:20]) or 'none inside it'}"
    if block and wanted == "Conv2d":
        return f"types={block[0]!r} draws its {block[1]} blocks; {there_are}"
    usual = next((name for name in _OTHER_TYPES if name in known), None)
    if usual and wanted == "Conv2d":
        return f"types={usual!r} draws those; {there_are}"
    return suggest(wanted, known) or there_are


def default_types(layers: Sequence[Layer], *, blocks: bool = True) -> tuple[str, ...]:
    """Return the default types: Conv2d, or Conv3d in a model without Conv2d; of a transformer its blocks too.

    A network with fewer convolutions than blocks counts as a transformer: its convolutions only embed patches.

    Args:
        layers: All layers of a network.
        blocks: Whether blocks are included.

    Example:
        >>> patches = nn.Conv2d(3, 8, 4, stride=4)
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
        >>> default_types(find_layers(nn.Sequential(patches, nn.Flatten(2), encoder)))
        ('Conv2d', 'TransformerEncoderLayer')
    """
    kind = "Conv3d" if absent_types(layers, ["Conv2d", "Conv3d"]) == ["Conv2d"] else "Conv2d"
    block, count = repeated_block(layers), sum(is_type(layer, kind) for layer in layers)
    if not blocks or block is None or count >= block[1]:
        return (kind,)
    return tuple(sorted([block[0], *([kind] if count else [])]))


def repeated_block(layers: Sequence[Layer]) -> tuple[str, int] | None:
    """Return the class of the blocks that a network repeats, and their number: those with the most parameters together.

    Blocks are members of the same list, if any classes are. Of stages that consist of blocks, the blocks are returned.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
        >>> repeated_block(find_layers(encoder))
        ('TransformerEncoderLayer', 3)
    """
    found: dict[str, list[nn.Module]] = defaultdict(list)
    for layer in layers:
        if any(layer.module.children()) and not isinstance(layer.module, _LISTS):
            found[layer.type].append(layer.module)
    sizes = {
        name: sum(values.numel() for module in modules for values in module.parameters())
        for name, modules in found.items()
        if len(modules) > 1
    }
    counts = (
        Counter(type(each).__name__ for each in layer.module.children())
        for layer in layers
        if isinstance(layer.module, _LISTS)
    )
    listed = {name for count in counts for name, number in count.items() if number > 1 and name in sizes}
    largest = max(listed or sizes, key=lambda name: sizes[name], default=None)
    while largest:
        parts = {type(part).__name__ for whole in found[largest] for part in whole.modules()} & listed - {largest}
        inner = max(parts, key=lambda name: sizes[name], default=None)
        if inner is None or 2 * sizes[inner] < sizes[largest]:
            break
        largest = inner
    return (largest, len(found[largest])) if largest else None


def notice_blocks(name: str, layers: Sequence[Layer]) -> str | None:
    """Return a notice if the default types include the blocks of a transformer."""
    block, (kind, *more) = repeated_block(layers), default_types(layers)
    if block is None or block[0] not in {kind, *more}:
        return None
    if not more:
        return f"{name} has no convolutions: its {block[1]} blocks are drawn, types={block[0]!r}"
    kind = next(other for other in (kind, *more) if other != block[0])
    count = sum(is_type(layer, kind) for layer in layers)
    return (
        f"{name} has {count} {kind} and {block[1]} blocks, {block[0]}: both are drawn; types={kind!r} leaves out the blocks"
    )


def notice_left_out(
    layers: Sequence[Layer], chosen: Sequence[Layer], *, include: str | Iterable[str] = (), exclude: str | Iterable[str] = ()
) -> str | None:
    """Return a notice if the default types leave out layers that a user may expect.

    With globs these are all that match. Without, it is at least half of the layers with weights: a convolutional network
    also has norms, activations and a linear head, which are expected to be left out.

    Args:
        layers: All layers of a network.
        chosen: Those that were chosen by the default types.
        include: Globs over dotted names; none means all.
        exclude: Globs of names that were left out.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        >>> notice_left_out(find_layers(net), find_layers(net)[::2], include="*")
        'layers= matches 2 layers of other types, which are left out: 1 BatchNorm2d, 1 ReLU; types= chooses others'
        >>> notice_left_out(find_layers(net), find_layers(net)[::2])
    """
    include, exclude = split(include), split(exclude)
    names = {layer.name for layer in chosen}
    simple = [
        layer
        for layer in layers
        if not isinstance(layer.module, _UNCHANGED) and not any(layer.module.children()) and not _matches(layer, exclude)
    ]
    if include:
        others = [layer for layer in simple if layer.name not in names and _matches(layer, include)]
        what = f"layers= matches {counted(len(others), 'layer')} of other types"
    else:
        computing = [layer for layer in layers if has_weights(layer) and not _matches(layer, exclude)]
        others = [layer for layer in computing if not any(is_in(layer.name, name) for name in names)]
        what = f"{len(others)} of the {len(computing)} layers with weights are of other types"
        others = others if 2 * len(others) >= len(computing) else []
    if not others:
        return None
    kinds = Counter(layer.type for layer in others)
    listed = first_few([f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))])
    return f"{what}, which {are(len(others))} left out: {listed}; types= chooses others"


def scripted_parts(layers: Sequence[Layer]) -> list[str]:
    """Return the names of the outermost scripted parts of a network; hooks do not work inside them."""
    scripted = [layer.name for layer in layers if isinstance(layer.module, jit.ScriptModule)]
    return [name for name in scripted if not any(name.startswith(f"{outer}.") for outer in scripted)]


def is_type(layer: Layer, name: str) -> bool:
    """Return True if a layer's class or one of its bases has this name."""
    return any(base.__name__ == name for base in type(layer.module).__mro__)


def layer_of(name: str) -> str:
    """Return the name of the layer in that of a feature map.

    Example:
        >>> layer_of("head#2['out'].t03"), layer_of("relu[0]"), layer_of("layer1.0.conv1")
        ('head', 'relu', 'layer1.0.conv1')
    """
    return re.sub(r"(#\d+)?(\[[^]]*\]|\.t\d+)*$", "", name)


def call_of(name: str) -> str:
    """Return the name of a feature map without that of a clip's frame.

    Example:
        >>> call_of("relu#2.t03"), call_of("relu#2")
        ('relu#2', 'relu#2')
    """
    return re.sub(r"\.t\d+$", "", name)


def has_weights(layer: Layer) -> bool:
    """Return True if a layer has weights, and is not linear: a head is expected to be left out."""
    return not isinstance(layer.module, _VECTORS) and any(own.ndim > 1 for own in layer.module.parameters(recurse=False))


def is_in(name: str, outer: str) -> bool:
    """Return True if a dotted name is another one, or of something inside it."""
    return name == outer or name.startswith(f"{outer}.")


def _matches(layer: Layer, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (layer.name, *layer.aliases))


def _hint_for_names(pattern: str, layers: Sequence[Layer], typed: Sequence[Layer]) -> str:
    """Return the option that a type belongs to, or similar names of layers; all of them if they are few."""
    names = [layer.name for layer in typed]
    meant = next((layer.type for layer in layers if layer.type.lower() == pattern.lower() or is_type(layer, pattern)), "")
    if meant:
        return f"this is a type, no name: types={(pattern if pattern.lower() != meant.lower() else meant)!r}"
    near = _near_names(pattern, names) or suggest(pattern, names)
    if near or len(names) > _FEW:
        usual = len(names) == len([layer for layer in layers if any(is_type(layer, each) for each in default_types(layers))])
        what = "model" if usual else "model, types='Module'"
        return near or f"there are: {first_few(names)}; fmapviz.list_layers({what}) lists all"
    return f"there are: {', '.join(names)}"


def _near_names(pattern: str, names: Sequence[str]) -> str | None:
    """Return a hint with similar names as deep in the network as the wanted one; those of blocks are globs."""
    level = pattern.count(".") + 1
    at_level = {".".join(name.split(".")[:level]) for name in names if name.count(".") >= level - 1}
    near = nearest(pattern, sorted(at_level), cutoff=0.8)
    shown = ", ".join(quote(name if name in names else f"{name}.*") for name in near)
    return f"did you mean {shown}?" if near else None


def _check_glob(layers: Sequence[Layer], typed: Sequence[Layer], pattern: str, types: Sequence[str]) -> None:
    if any(_matches(layer, [pattern]) for layer in typed):
        return
    others = [layer for layer in layers if _matches(layer, [pattern])]
    if others:
        found = sorted({layer.type for layer in others})
        raise RequestError(
            f"no {' or '.join(types)} among the layers that match {quote(pattern)}",
            hint=f"they are of other types: types={found[:8]}",
        )
    raise RequestError(
        f"no layer matches {quote(pattern)}",
        hint=_hint_for_names(pattern, layers, typed),
    )
