"""Class activation maps: in a run, and for a batch of the user."""

from dataclasses import dataclass
from typing import Any

from fmapviz.core.members import HEAT_LOOKS, Contribution, View


@dataclass(frozen=True, slots=True, kw_only=True)
class CamView(View):
    """A class activation map.

    Attributes:
        ranged: As of `View`.
        placed: Likewise.
        observe: Likewise.
        method: Likewise; not of a sheet.
        needs: The parameters of the formula: `activations`, `gradients`, `weights` of the classifier, `pixel_gradients`.
        formula: Reference of the function that computes it, see `fmapviz.features.cam.formulas`.
        targets: Its classes if the user names none.
        colormap: Colour map unless the style names one; empty: that of all heat maps.
    """

    observe: str = "fmapviz.features.cam.observer:observe_cams"
    ranged: bool = True
    placed: bool = True
    method: bool = True
    needs: tuple[str, ...] = ("activations", "gradients")
    formula: str
    targets: str = "top1"
    colormap: str = ""


def _view(name: str, text: str, *needs: str, **more: Any) -> CamView:  # Any: the other attributes of a view
    known = {"needs": needs} if needs else {}
    given = {"looks": HEAT_LOOKS, "formula": f"fmapviz.features.cam.formulas:{name}"} | known | more
    return CamView(name=name, help=text, **given)


CONTRIBUTION = Contribution(
    examples=(("fmapviz resnet18 photo.jpg --view gradcam --to html", "heat maps: what speaks for the predicted class"),),
    views=(
        _view(
            "gradcam",
            "Heat map over the input: the regions that raise a class's score (Grad-CAM).",
            words="heatmap heat-map heatmaps grad-cam gradcams cams class-activation-map explain explanation layergradcam "
            "layer-gradcam layer-grad-cam",
        ),
        _view(
            "gradcam++",
            "Grad-CAM with weights that cover several objects of one class (Grad-CAM++).",
            formula="fmapviz.features.cam.formulas:gradcam_pp",
            words="grad-cam++ gradcamplusplus gradcam-plus-plus gradcampp grad-campp gradcam-plusplus",
        ),
        _view(
            "layercam",
            "Grad-CAM with a weight for each position, sharp at early layers too (LayerCAM).",
            words="layer-cam",
        ),
        _view(
            "hirescam",
            "Grad-CAM without averaged gradients: only regions that the score depends on (HiResCAM).",
            words="hires-cam",
        ),
        _view(
            "xgradcam",
            "Grad-CAM with each channel's gradients weighted by its activations (XGrad-CAM).",
            words="xgrad-cam",
        ),
        _view(
            "eigencam",
            "First principal component of a layer's channels, independent of the class (Eigen-CAM).",
            "activations",
            words="eigen-cam",
        ),
        _view(
            "cam",
            "Class activation map, exact, for a network that ends in average pooling and one linear layer (CAM).",
            *("activations", "weights"),
        ),
        _view(
            "sheet",
            "One labelled sheet with Grad-CAM of several layers, the rows, and several classes, the columns.",
            looks=("colormap", "alpha", "gray_input"),
            ranged=False,
            method=False,
            formula="fmapviz.features.cam.formulas:gradcam",
            targets="top3",
            compose="fmapviz.features.cam.sheet:compose",
        ),
        # As fine as the picture, which it would hide.
        _view(
            "saliency",
            "Absolute gradient of a class's score with respect to each pixel of the input.",
            "pixel_gradients",
            looks=tuple(look for look in HEAT_LOOKS if look not in {"alpha", "gray_input"}),
            over=False,
            placed=False,
            colormap="gray",
            words="vanilla-gradient vanilla-gradients input-gradient input-gradients saliency-map pixel-gradients backprop",
        ),
    ),
)
