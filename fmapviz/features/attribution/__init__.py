"""Attribution by changed images: what the score of a class does when the input changes."""

from dataclasses import dataclass
from typing import Any

from fmapviz.core.members import HEAT_LOOKS, Contribution, View


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionView(View):
    """A heat map of the input, by passes of changed copies of the image.

    Attributes:
        ranged: As of `View`.
        observe: Likewise.
        method: Likewise.
        attribute: Reference of a function of `fmapviz.run.changed_passes.ImagePasses`, of the `Preparation` of the image
            and of `Changes`, which returns the signed map, float32 `(H, W)`, and a note for its caption.
        passes: Reference of a function of the shape of an image and of `Changes`, which returns the number of passes.
        describe: Reference of a function of `Changes`, which describes the method.
        weighted: Whether it is of the class's probability, where the network has one.
        colormap: Colour map unless the style names one; empty: that of all heat maps.
    """

    ranged: bool = True
    observe: str = "fmapviz.features.attribution.observer:observe_attribution"
    method: bool = True
    attribute: str
    passes: str
    describe: str
    weighted: bool = False
    colormap: str = ""


def _view(name: str, text: str, *options: str, **more: Any) -> AttributionView:  # Any: the other attributes of a view
    module = f"fmapviz.features.attribution.{name.replace('-', '_')}"
    parts = {part: f"{module}:{part}" for part in ("attribute", "passes", "describe")}
    return AttributionView(name=name, help=text, options=options, **{"looks": HEAT_LOOKS} | parts | more)


# As fine as the picture, which it would hide.
_FINE = {
    "looks": tuple(look for look in HEAT_LOOKS if look not in {"alpha", "gray_input"}),
    "over": False,
    "colormap": "gray",
}

CONTRIBUTION = Contribution(
    views=(
        _view(
            "occlusion",
            "Heat map over the input: how much a class's score falls when a patch is replaced.",
            *("patch", "stride", "baseline"),
            words="occlusion-map occlusion-sensitivity ablation feature-ablation featureablation occlusions",
        ),
        _view(
            "integrated-gradients",
            "Gradients from a baseline to the image, times what the image adds (integrated gradients).",
            *("steps", "baseline"),
            words="integrated-gradient integratedgradients ig path-gradients",
            **_FINE,
        ),
        _view(
            "smoothgrad",
            "Mean of saliency over noisy copies of the image (SmoothGrad).",
            "samples",
            words="smooth-grad noise-tunnel smooth-gradient",
            **_FINE,
        ),
        _view(
            "rise",
            "Heat map over the input: mean of random masks, weighted by the class's probability (RISE).",
            *("samples", "baseline"),
            weighted=True,
            words="d-rise drise random-masks randomized-input-sampling",
        ),
    ),
)
