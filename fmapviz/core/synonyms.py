"""The words of other tools for options and models, each with the word meant here; views and formats have their own.

A hint is made of them before similar spellings are looked for: `class` is nearer to `clusters` than to `target`. Names of
options are Python's, see `fmapviz.errors`.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from fmapviz.errors import quote

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fmapviz.core.members import NamedMember

_ARGUMENTS = "the model comes first, then the images, both without the name of an option"
_CONTINUES = "a run continues by itself, finished images are skipped; weights=FILE loads a checkpoint"
_CLASSES = (
    "names of classes are read from the weights, or from a list `classes` beside your network, see the page models of the "
    "guide; targets= chooses a class"
)
_PAPERS = "svg has the pixels unchanged and its labels as text; browsers and Inkscape save it as PDF"
_OTHER_EXPLANATIONS = "there is no such method here; the page layers-and-views of the guide lists the views of a class"
_AUGMENTED = "heat maps are not averaged over changed inputs; smooth= enlarges them smoothly"
_PRECISION = (
    "a network computes in the type of its weights: give the function that builds it .half() or .double(); dtype= chooses "
    "the type of stored values"
)
_LIMITS = "norm='fixed:LO,HI' draws the values from LO to HI"
_RANGES = "norm= chooses the range that is drawn; mean= and std= prepare the input"

# By option: the words that mean it. A text with a blank is a sentence, one with "=" a value of an option.
_OPTIONS = {
    "out": "o output-dir output-directory output-path output-folder outdir out-dir save-dir savedir save-path save-to dest "
    "destination project logdir log-dir results results-dir result-dir dir directory folder export-dir work-dir target-dir",
    "weights": "checkpoint ckpt ckpt-path checkpoint-path weight weights-path weights-file model-weights model-path load "
    "load-from state-dict state load-weights init init-from snapshot pth w",
    "weights='random'": "no-pretrained random-init random-weights untrained scratch",
    "published weights are the default; weights='random' takes others": "pretrained use-pretrained",
    _CONTINUES: "resume continue restart auto-resume skip-existing",
    "targets": "class class-id class-idx class-index class-name category label target-class target-category "
    "target-index targets c cls",
    _CLASSES: "classes class-names class-list class-file classes-file class-map class-labels categories label-names "
    "label-map labelmap label-file labels-file labels-path id2label idx2label synset",

    "views": "method methods mode kind visualize viz vis visualization visualisation algorithm cam-method plot draw "
    "views attribution",
    "to": "format formats f fmt output-format output-type export save-as ext extension file-format filetype writer writers",
    "layers": "l layer target-layer target-layers layer-name layer-names module modules node nodes block blocks hook hooks "
    "include only name-filter stages return-nodes return-layers",
    "exclude": "ignore skip omit except skip-layers exclude-layers ignore-layers",
    "types": "layer-type layer-types module-type module-types layer-class op ops operator",
    "device='cpu'": "cpu no-cuda no-gpu use-cpu cpu-only force-cpu",
    "device='cuda'": "gpu cuda use-cuda use-gpu",
    "device='mps'": "mps use-mps metal",
    "device": "gpus gpu-id gpu-ids devices accelerator d cuda-device",
    "batch_size": "b bs batch batchsize batches images-per-batch",
    "workers": "j jobs n-jobs num-jobs num-workers threads num-threads nproc n-workers parallel processes cores",
    "force": "overwrite rerun redo redraw recompute clobber replace no-cache exist-ok no-resume clean fresh yes y",
    "repair": "fix check-files heal",
    "size": "image-size img-size imgsz img-sz input-size resize resolution res input-shape shape s height width",
    "fit": "crop resize-mode crop-mode crop-pct keep-ratio keep-aspect aspect",
    "fit='crop'": "center-crop centre-crop",
    "fit='pad'": "letterbox",
    "fit='squash'": "stretch distort",
    "columns": "nrow nrows ncol ncols cols num-cols tiles-per-row per-row grid-size grid",
    "channels": "channel max-channels num-channels n-channels max-features num-features n-features max-maps features "
    "max-filters",
    "channels='top:16' draws the strongest channels; predictions= counts predicted classes": "topk top-k k",
    "predictions": "predict num-predictions top-n topn show-predictions",
    "colormap": "cmap color-map colour-map palette colors colours lut color colour",
    "alpha": "opacity transparency blend image-weight overlay-alpha",
    "scale": "zoom upscale upsample enlarge magnify tile-size pixel-size dpi factor",
    "padding": "border gap margin spacing space",
    "norm": "range value-range scale-each minmax normalise-channels",
    _RANGES: "normalize normalise normalization normalisation",
    _AUGMENTED: "aug-smooth eigen-smooth tta test-time-augmentation",
    "norm='fixed:LO,HI'": "vmin vmax clip clim min-value max-value",
    "smooth": "interpolation interpolate bilinear upsampling",
    "labels": "annotate annotations titles title captions caption show-labels text channel-numbers",
    "colorbar": "legend color-bar colour-bar colourbar cbar bar show-scale",
    "single_file": "standalone self-contained one-file embed inline bundle",
    "background": "bg bg-color background-color background-colour padding-color padding-value pad-value pad-color facecolor "
    "ground",
    "background='white'": "white white-background light",
    "background='transparent'": "transparent transparent-background",
    "background='black'": "black dark black-background dark-mode",
    "text_size": "font-size fontsize label-size font text-scale",
    "with_input": "show-input input-tile include-input add-input prepend-input",
    "name": "run-name experiment experiment-name exp exp-name tag run-id id n",
    "every": "vid-stride frame-step step skip-frames frame-stride interval sample-rate fps",
    "steps": "n-steps num-steps",
    "patch": "patch-size window window-size sliding-window-shape sliding-window",
    "stride": "strides",
    "baseline": "baselines reference-image",
    "samples": "n-samples num-samples nt-samples nt-samples-batch n-masks num-masks masks",
    "frames": "frame-range start-frame end-frame max-frames start end",
    "shard": "shard-size shards num-shards chunk chunk-size maxcount",
    "part": "split partition rank world-size array-index",
    "strict": "fail-fast exitfirst stop-on-error abort-on-error x",
    _PRECISION: "half fp16 float16 bf16 bfloat16 precision amp autocast",
    "query": "q token pixel position",
    "folders are searched with all that is in them": "recursive r recurse",
    _ARGUMENTS: "m model arch architecture net network backbone i image images img input inputs source src data data-dir "
    "dataset image-path img-path file files input-dir path",
}  # fmt: skip

_VIEWS = {
    _OTHER_EXPLANATIONS: "scorecam score-cam sscam iscam ablationcam ablation-cam groupcam group-cam fullgrad full-grad "
    "perturbation lime shap deepshap deeplift gradientshap kernelshap lrp guided-backprop guidedbackprop "
    "guided-backpropagation guidedgradcam guided-gradcam guided-grad-cam deconvnet deconvolution "
    "inputxgradient layerconductance layer-conductance vargrad input-x-gradient",
}  # fmt: skip

_FORMATS = {_PAPERS: "pdf eps ps latex tikz pgf vector"}

_NORMS = {
    "channel": "minmax min-max scale-each per-channel channels each tile per-tile map per-map individual self auto",
    "layer": "per-layer layers grid make-grid",
    "run": "global dataset all shared common same images series",
    "signed": "symmetric symmetrical diverging zero-centred zero-centered centred centered abs absmax twoslope",
    _LIMITS: "fixed fix range limits clip clamp vmin vmax manual constant",
}

_WEIGHTS = {
    "default": "pretrained true yes imagenet best latest",
    "random": "none no false null untrained scratch init initialised initialized rand noise",
}

FAMILIES: Mapping[str, Mapping[str, str]] = {
    family: {word: meant for meant, words in table.items() for word in words.split()}
    for family, table in (("view", _VIEWS), ("format", _FORMATS), ("norm", _NORMS), ("weights", _WEIGHTS))
}
OPTIONS: Mapping[str, str] = {word: meant for meant, words in _OPTIONS.items() for word in words.split()}

# Networks that people name by a word that is no model's name here: a model of the family.
MODELS: Mapping[str, str] = {
    "dino": "timm:vit_small_patch16_224.dino",
    "dinov2": "hf:facebook/dinov2-small",
    "dinov3": "timm:vit_small_patch16_dinov3",
    "clip": "hf:openai/clip-vit-base-patch32",
    "siglip": "timm:vit_base_patch16_siglip_224",
    "mae": "hf:facebook/vit-mae-base",
    "beit": "timm:beit_base_patch16_224",
    "deit": "timm:deit_small_patch16_224",
    "sam": "timm:samvit_base_patch16",
    "eva": "timm:eva02_tiny_patch14_224",
    "hiera": "timm:hiera_tiny_224",
    "pvt": "timm:pvt_v2_b0",
    "levit": "timm:levit_128",
    "mobilevit": "timm:mobilevit_s",
    "efficientformer": "timm:efficientformer_l1",
    "nfnet": "timm:nfnet_f0",
    "xception": "timm:legacy_xception",
    "segformer": "hf:nvidia/segformer-b0-finetuned-ade-512-512",
    "detr": "hf:facebook/detr-resnet-50",
    "yolos": "hf:hustvl/yolos-tiny",
    "yolo": "ultralytics:yolo11n.yaml",
    "unet": "my_net.py:build",
}


def meant_option(word: str, written: Mapping[str, str], members: Mapping[str, Mapping[str, NamedMember]]) -> str | None:
    """Return a hint for an option of another tool; None if the word is in no table.

    Args:
        word: The option without dashes in front.
        written: The spelling of each existing option, up to its value.
        members: The views and the formats, by the option that takes them: `--maps` is `--view maps`.

    Example:
        >>> meant_option("overwrite", {"force": "force="}, {})
        'did you mean force=?'
        >>> from fmapviz.core import registry
        >>> meant_option("maps", {"views": "views="}, {"views": registry.views()})
        "did you mean views='maps'?"
    """
    word = word.lower().replace("_", "-")
    found = ((name, member) for name, known in members.items() for member in known.values())
    by_member = (f"{name}={each.name!r}" for name, each in found if word in (each.name, *each.words.split()))
    meant = OPTIONS.get(word) or next(by_member, None)
    if meant is None or " " in meant:
        return meant
    name, _, value = meant.partition("=")
    name = name if name in written else name.removesuffix("s")  # a function of one layer has layer=, not layers=
    if name not in written:
        return None
    text = written[name]
    return f"did you mean {text.replace('...', value) if value and '...' in text else text + value}?"


def meant_name(word: str) -> str:
    """Return the name of the option that a word means, or the word itself.

    Example:
        >>> meant_name("img_size"), meant_name("size")
        ('size', 'size')
    """
    return OPTIONS.get(word.lower().replace("_", "-"), word).partition("=")[0]


def meant_member(
    kind: str, word: str, known: Collection[str], words: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return a hint for a view, format, norm or weights of another tool; None for an unknown word.

    Args:
        kind: `view`, `format`, `norm` or `weights`.
        word: As the user wrote it.
        known: The existing members.
        words: Further words, by the member that they belong to.

    Example:
        >>> meant_member("view", "Activations", ["maps"], {"maps": "activations features"})
        "did you mean 'maps'?"
    """
    written = word.lower().replace("_", "-")
    member = next((name for name, others in words.items() if written in others.split()), None)
    meant = member or FAMILIES.get(kind, {}).get(written)
    if meant is not None and " " in meant:
        return meant
    return f"did you mean {quote(meant)}?" if meant in known else None


def meant_model(word: str) -> str | None:
    """Return a hint for a network by the name of its family; None if it is in no table.

    Example:
        >>> meant_model("DINOv2")
        "hf:facebook/dinov2-small is one; fmapviz.model_names('timm:*dinov2*') lists others"
    """
    family = re.sub(r"[\s_-]", "", word.lower())
    if match := re.fullmatch(r"yolo(v?\d+)?.*", family):
        others = f"ultralytics:*{match[1] or ''}*"
        return f"{MODELS['yolo']} is one; fmapviz.model_names({quote(others)}) lists others; weights=FILE fills it"
    names = sorted(MODELS, key=len, reverse=True)  # dinov2_vits14 is of dinov2, not of dino
    name = next((each for each in names if family == each or (len(each) > 3 and family.startswith(each))), None)
    if name is None:
        return None
    meant, family = MODELS[name], name
    if meant.startswith("my_net"):
        return f"torchvision and timm have none: name the code of yours, such as {meant}"
    return f"{meant} is one; fmapviz.model_names('timm:*{family}*') lists others"
