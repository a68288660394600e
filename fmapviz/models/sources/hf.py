"""The models of Hugging Face's transformers: `hf:google/vit-base-patch16-224`, `hf:vit(hidden_size=192)`, a folder, ..."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from fmapviz.config import sides_of
from fmapviz.core.user_code import one_line, split_call
from fmapviz.core.words import counted
from fmapviz.errors import RequestError, WeightsError, first_few, quote, suggest
from fmapviz.images.preprocess import standard
from fmapviz.models.initialization import read_seed, seeded
from fmapviz.models.network import input_channels
from fmapviz.models.processor import by_processor
from fmapviz.models.sources.base import refused
from fmapviz.models.weights.file import DAMAGED, INDEX, read_index
from fmapviz.models.weights.fit import LoadedWeights, load_weights
from fmapviz.models.weights.hub_file import find_on_hub, list_cached

# isort: split
import transformers
from transformers.models.auto import modeling_auto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from fmapviz.config import InputOptions
    from fmapviz.data import Model, Preparation


_CONFIG = "config.json"
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
_VISION_PARTS = ("vision_model", "vision_tower", "image_model", "visual")


@dataclass(frozen=True, slots=True)
class _Head:
    """What a network may end with.

    Attributes:
        types: The types that may have it, with their classes.
        builder: Builds a network with it.
        suffixes: Of the names of these classes.
        outputs: What it returns: scores of `classes`, `boxes`, or `values` of no class.
    """

    types: Any  # of transformers, like the builder
    builder: Any
    suffixes: tuple[str, ...]
    outputs: Literal["classes", "boxes", "values"] = "classes"


_HEADS = (
    _Head(
        transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        transformers.AutoModelForImageClassification,
        ("ForImageClassification",),
    ),
    _Head(
        transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING,
        transformers.AutoModelForObjectDetection,
        ("ForObjectDetection",),
        outputs="boxes",
    ),
    _Head(
        transformers.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING,
        transformers.AutoModelForSemanticSegmentation,
        ("ForSemanticSegmentation",),
    ),
    _Head(
        transformers.MODEL_FOR_IMAGE_SEGMENTATION_MAPPING,  # of DETR, whose boxes have masks too
        transformers.AutoModelForImageSegmentation,
        ("DetrForSegmentation",),
        outputs="boxes",
    ),
    _Head(
        transformers.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING,
        transformers.AutoModelForUniversalSegmentation,
        ("ForUniversalSegmentation", "MaskFormerForInstanceSegmentation"),
    ),
    _Head(
        transformers.MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING,
        transformers.AutoModelForInstanceSegmentation,
        ("ForInstanceSegmentation",),
        outputs="boxes",
    ),
    _Head(
        transformers.MODEL_FOR_DEPTH_ESTIMATION_MAPPING,
        transformers.AutoModelForDepthEstimation,
        ("ForDepthEstimation",),
        outputs="values",
    ),
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@dataclass(frozen=True, slots=True)
class _Files:
    """Where the files of a model are.

    Attributes:
        folder: A folder of the user.
        repository: Of the hub.
        revision: Its commit.
    """

    folder: Path | None = None
    repository: str = ""
    revision: str | None = None

    def find(self, names: Sequence[str], *, instead: str = "") -> Path | None:
        """Return the first existing one of some files; see `find_on_hub`."""
        if self.folder:
            return next((self.folder / name for name in names if os.path.isfile(self.folder / name)), None)
        return find_on_hub(self.repository, names, revision=self.revision, instead=instead) if self.repository else None


def model_names() -> list[str]:
    """List the models in the hub's cache, and the types of classifiers, which can have random weights."""
    return sorted({*list_cached(), *modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES})


def load(name: str, *, weights: str | Mapping[str, Any] | None, preprocessing: InputOptions) -> Model:
    """Build a model and fill it with weights; see `ModelSource`.

    Arguments for its configuration may follow the name, as in `vit(hidden_size=192)`.
    """
    full, arguments = (name, {}) if os.path.isdir(name) else split_call(name)
    files = _locate(full)
    config = _configure(full, files.find([_CONFIG]), arguments)
    is_random = weights is None or read_seed(weights) is not None
    if preprocessing.size and is_random and isinstance(getattr(config, "image_size", None), int):
        height, width = sides_of(preprocessing) or (0, 0)
        config.image_size = height if height == width else (height, width)
    build = partial(_build, config)
    if weights != "default":
        loaded = load_weights(weights, build, fill=_fill)
    elif files == _Files():
        raise WeightsError(
            f"no published weights: {quote(full)} is a type of models",
            hint="weights='random', weights=FILE, or a model of this type: hf:ORGANIZATION/NAME",
        )
    else:
        loaded = _load_published(files, build)
    network, notices = _picture_part(loaded.module)
    head = _head(config)
    if head is None or head.outputs == "values":
        notices = (f"{type(loaded.module).__name__} has no head of classes", *notices)
    processor = files.find(_PROCESSORS)
    if processor is None and not is_random:
        notices = (*notices, "no preprocessing is published with the model: images are preprocessed as for ImageNet")
    preparation = _preparation(processor, network, preprocessing, size=getattr(config, "image_size", None))
    return replace(
        loaded.as_model(f"hf:{name}", preparation),
        module=network.eval(),
        forward=_caller(network, config),
        classes=loaded.classes or (tuple(_classes(config)) if head and head.outputs != "values" else ()),
        scores=_scores(config) if head and head.outputs == "classes" else "",
        notices=(*loaded.notices, *notices),
    )


def _locate(full: str) -> _Files:
    """Return where the files of a model are; nowhere for a type of models.

    Raises:
        RequestError: It is neither a type nor a folder, nor looks like a name of the hub.
        WeightsError: The hub's cache does not have it, and the hub cannot be reached.
    """
    if full in transformers.CONFIG_MAPPING:
        return _Files()
    folder = Path(full)
    if os.path.isdir(full):
        if not os.path.isfile(folder / _CONFIG):
            raise RequestError(
                f"no {_CONFIG} in the folder {quote(full)}", hint="save_pretrained() of transformers writes it"
            )
        return _Files(folder=folder)
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", full)
    if not match or ".." in full:
        raise RequestError(
            f"no such model in transformers: {quote(full)}",
            hint=suggest(full, model_names())
            or "hf:ORGANIZATION/NAME, or a type such as hf:vit; fmapviz.model_names('hf:*')",
        )
    repository, revision = match.groups()
    path = find_on_hub(repository, [_CONFIG], revision=revision, instead="")
    if path is None:
        raise RequestError(f"{quote(full)} is no model of transformers: it has no {_CONFIG}", hint="timm:NAME for timm's")
    return _Files(repository=repository, revision=path.parent.name)  # the commit


def _configure(full: str, path: Path | None, arguments: Mapping[str, Any]) -> Any:
    """Return the configuration of a model, with the user's arguments.

    Nothing in it may lead to code: neither `auto_map`, modules of the repository, nor the name of a kernel for attention,
    which transformers would download and run.

    Raises:
        RequestError: transformers has no such model, or it does not accept the arguments.
    """
    # Any: a configuration has attributes of its own class.
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RequestError(f"cannot read {quote(path)}: no configuration of a model", hint=DAMAGED) from error
    kind = values.pop("model_type", None) if path else full
    if kind not in transformers.CONFIG_MAPPING:
        raise _unknown_type(full, values, kind)
    known = transformers.CONFIG_MAPPING[kind]()
    for key in arguments:
        if not hasattr(known, key) or _leads_to_code(key):
            raise RequestError(
                f"{quote(kind)} takes no argument of this name: {quote(key)}",
                hint=suggest(key, known.to_dict()) or f"those of transformers.{type(known).__name__}",
            )
    if "quantization_config" in values:
        raise RequestError(f"{quote(full)} is quantised", hint="name the model that was quantised")
    if "num_labels" in arguments:
        values = {key: value for key, value in values.items() if key not in {"id2label", "label2id", "num_labels"}}
    try:
        config = transformers.AutoConfig.for_model(kind, **(_without_code(values) | arguments))
    except Exception as error:
        hint = f"transformers.{type(known).__name__} takes the same arguments"
        raise refused("transformers", full, arguments, error, hint=hint) from error
    config.architectures = config.architectures or []  # transformers 5.24 fails with None where a type has several heads
    return config


def _unknown_type(full: str, values: Mapping[str, Any], kind: object) -> RequestError:
    if "architecture" in values:
        return RequestError(
            f"{quote(full)} is a model of timm", hint=f"type timm:{full.rpartition('/')[2].partition('@')[0]}"
        )
    if "auto_map" in values:
        return RequestError(
            f"the architecture of {quote(full)} is code in its repository, which is not run",
            hint="if you trust it, load it in code of yours: my_net.py:build",
        )
    return RequestError(
        f"{quote(full)} is no model of transformers {transformers.__version__}: its type is {kind!r}", hint=None
    )


def _leads_to_code(key: str) -> bool:
    return key == "auto_map" or key.endswith(("_implementation", "_implementation_internal"))


def _without_code(values: Any) -> Any:
    # Any: JSON.
    if isinstance(values, dict):
        return {key: _without_code(value) for key, value in values.items() if not _leads_to_code(key)}
    return [_without_code(value) for value in values] if isinstance(values, list) else values


def _head(config: Any) -> _Head | None:
    """Return the head of a configuration, or of its type; None: it has none that is known."""
    for head in _HEADS:
        named = any(suffix in name for name in config.architectures for suffix in head.suffixes)
        if type(config) in head.types and (named or not config.architectures):
            return head
    return None


def _build(config: Any) -> nn.Module:
    head = _head(config)
    auto = transformers.AutoModel if head is None else head.builder
    try:
        module: nn.Module = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        raise RequestError(
            f"transformers cannot build a model of {type(config).__name__}: {one_line(error)}",
            hint="are the arguments consistent, such as hidden_size and num_attention_heads?",
        ) from error
    return module


def _load_published(files: _Files, build: Callable[[], nn.Module]) -> LoadedWeights:
    """Fill a model with its published weights."""
    path = files.find(_WEIGHTS, instead=", or pass weights=FILE or weights='random'")
    if path is None:
        raise WeightsError(f"no weights in {quote(files.folder or files.repository)}", hint=f"one of {', '.join(_WEIGHTS)}")
    if path.name.endswith(INDEX):
        for shard in sorted(set(read_index(path).values())):
            files.find([shard])
    loaded = load_weights(str(path), build, fill=_fill)
    if files.folder is None:
        return replace(loaded, name=f"revision {str(files.revision)[:12]}")
    # The configuration decides as much as the weights.
    configured = (files.folder / _CONFIG).read_bytes() + str(loaded.sha256).encode()
    return replace(loaded, sha256=hashlib.sha256(configured).hexdigest())


def _fill(outline: Any, state: dict[str, Tensor], path: Path) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a model like the outline with weights. transformers does it, as it knows the keys of its earlier versions.

    Raises:
        WeightsError: They do not fit; only a pooler may be missing, which comes after all layers, and an AutoModel may leave
            out a head.
    """
    # Any: a class of transformers.
    try:
        with seeded(0):
            module, info = type(outline).from_pretrained(
                None,
                config=outline.config,
                state_dict=state,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:
        raise WeightsError(f"transformers cannot load {quote(path)}: {one_line(error)}", hint=DAMAGED) from error
    resized, missing, unused = (sorted(info[f"{kind}_keys"]) for kind in ("mismatched", "missing", "unexpected"))
    pooler = [key for key in missing if re.search(r"(^|\.)pooler\.", key)]
    wrong = [f"{key} is {tuple(theirs)}, not {tuple(own)}" for key, theirs, own in resized]
    wrong += [f"missing {key}" for key in missing if key not in pooler]
    wrong += [f"unexpected {key}" for key in unused] if _head(outline.config) else []
    if wrong or len(unused) >= len(state):
        rows = next((theirs[0] for key, theirs, own in resized if theirs[1:] == own[1:]), None)
        raise WeightsError(
            f"the weights in {quote(path)} do not fit: {first_few(wrong or unused, separator='; ')}",
            hint=f"if they are for {counted(rows, 'class')}: the model with (num_labels={rows})"
            if rows and len(resized) == len(wrong)
            else "do the weights belong to another model, or to another configuration of it?",
        )
    notices = [f"not in {quote(path)}, initialized with seed 0: {first_few(pooler)}"] if pooler else []
    return module, (*notices, *([f"not used of {quote(path)}: {first_few(unused)}"] if unused else ()))


def _picture_part(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the part of a model that takes only pictures, and a notice if it is not all of it.

    Raises:
        RequestError: It takes no pictures, or clips.
    """
    taken = inspect.signature(module.forward).parameters
    kind = type(module).__name__
    if hasattr(module.config, "num_frames"):
        raise RequestError(f"{kind} takes clips of several frames, not pictures", hint="code of yours can repeat a picture")
    required = [
        name
        for name, each in taken.items()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD and name != "pixel_values"
    ]
    if "pixel_values" in taken and "input_ids" not in taken and not required:
        return module, ()
    for name in _VISION_PARTS:
        for path in (name, f"model.{name}"):
            part = dict(module.named_modules()).get(path)
            if part is not None and "pixel_values" in inspect.signature(part.forward).parameters:
                return part, (f"{kind} takes text too: its {path} is drawn",)
    raise RequestError(
        f"{kind} takes {first_few([name for name in taken if name != 'kwargs'])}: no pictures alone",
        hint="code of yours can supply the other inputs: my_net.py:build",
    )


def _preparation(processor: Path | None, network: nn.Module, preprocessing: InputOptions, *, size: Any) -> Preparation:
    # Any: a number, two, or None.
    sides = (size, size) if isinstance(size, int) else tuple(size) if size else (224, 224)
    channels = preprocessing.channels_in or input_channels(network)
    if processor is None or channels != 3:
        return standard(preprocessing, size=(sides[0], sides[-1]), channels=channels)
    try:
        loaded = transformers.AutoImageProcessor.from_pretrained(processor.parent, trust_remote_code=False)
    except Exception as error:
        raise RequestError(
            f"cannot load the image processor of {quote(processor)}: {one_line(error)}", hint=DAMAGED
        ) from error
    return by_processor(loaded, preprocessing)


def _caller(network: nn.Module, config: Any) -> Callable[[nn.Module, Tensor], object]:
    """Return the forward pass of a model: positions are interpolated for pictures of another size, and nothing is masked."""
    taken = inspect.signature(network.forward).parameters
    own = getattr(network, "config", config)
    trained, patch = (_pair(getattr(own, name, None)) for name in ("image_size", "patch_size"))
    if "noise" in taken and hasattr(own, "mask_ratio"):  # a masked autoencoder drops and shuffles its patches
        own.mask_ratio = 0.0

    def call(network: nn.Module, batch: Tensor) -> object:
        more: dict[str, object] = {}
        if "interpolate_pos_encoding" in taken and trained and tuple(batch.shape[-2:]) != trained:
            more["interpolate_pos_encoding"] = True
        if "noise" in taken and patch:
            count = prod(side // step for side, step in zip(batch.shape[-2:], patch, strict=True))
            more["noise"] = torch.arange(count, device=batch.device, dtype=batch.dtype).expand(len(batch), -1)
        return _with_pixels(network(pixel_values=batch, **more))

    return call


def _with_pixels(output: Any) -> object:
    """Return an output of masks, each with its classes, with the scores of pixels as `logits`; any other as it is.

    The score of a class at a pixel is the sum over all queries of the probability of the class times that of the mask, as
    in Cheng et al., *Per-pixel classification is not all you need for semantic segmentation*, 2021, section 3.4, and in
    `post_process_semantic_segmentation` of transformers.
    """
    # Any: a class of transformers.
    if not {"class_queries_logits", "masks_queries_logits"} <= set(output) or "logits" in output:
        return output
    classes = output["class_queries_logits"].softmax(-1)[..., :-1]  # without the one of no object
    masks = output["masks_queries_logits"].sigmoid()
    return {"logits": torch.einsum("nqk,nqhw->nkhw", classes, masks), **output}


def _pair(sides: Any) -> tuple[int, int] | None:
    # Any: a number, two, or None.
    return (sides, sides) if isinstance(sides, int) else (sides[0], sides[-1]) if sides else None


def _scores(config: Any) -> str:
    """Return the kind of outputs by a configuration; empty if it does not define a single output.

    With no `problem_type`, several outputs are logits of a softmax for the pipeline `image-classification` of transformers.
    """
    # Any: a configuration has attributes of its own class.
    match config.problem_type:
        case "multi_label_classification":
            return "sigmoid"
        case "regression":
            return "value"
        case "single_label_classification":
            return "softmax"
    return "softmax" if config.num_labels > 1 else ""


def _classes(config: Any) -> Iterator[str]:
    """Yield the class names, without the placeholders of transformers."""
    labels = [str(label) for _, label in sorted((config.id2label or {}).items())]
    if not all(re.fullmatch(r"LABEL_\d+", label) for label in labels):
        yield from (label.partition(",")[0] for label in labels)
