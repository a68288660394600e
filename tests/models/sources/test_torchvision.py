"""Most families of torchvision's models, each with its smallest member; `make all-models` goes through all 121."""

import pytest
from all_models import check
from cases import thorough

from fmapviz import InputOptions

SMALL = InputOptions(size=(96, 96))

# One of each kind: in-place, with idle layers, of tokens, quantizable, segmentation, detection, optical flow.
FAMILIES = [
    ("alexnet", SMALL),
    ("googlenet", SMALL),
    ("resnet18", SMALL),
    ("swin_t", SMALL),
    ("quantized_mobilenet_v2", SMALL),
    ("lraspp_mobilenet_v3_large", SMALL),
    ("ssdlite320_mobilenet_v3_large", None),
    ("raft_small", InputOptions(size=(128, 128))),
]
MORE = [
    ("convnext_tiny", SMALL),
    ("r3d_18", None),
    ("densenet121", SMALL),
    ("efficientnet_b0", SMALL),
    ("maxvit_t", None),
    ("mnasnet0_5", SMALL),
    ("mobilenet_v3_small", SMALL),
    ("regnet_y_400mf", SMALL),
    ("shufflenet_v2_x0_5", SMALL),
    ("squeezenet1_1", SMALL),
    ("fasterrcnn_mobilenet_v3_large_320_fpn", None),
    ("s3d", None),
]


@pytest.mark.thorough
def test_each_convolution_of_a_detector_of_keypoints_that_ran_has_its_picture(tmp_path):
    print(check("keypointrcnn_resnet50_fpn", tmp_path, side=200))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "options"), [*FAMILIES, *thorough(*MORE)], ids=[name for name, _ in (*FAMILIES, *MORE)])
def test_each_convolution_that_ran_has_its_picture_and_the_others_are_named(name, options, tmp_path):
    print(check(name, tmp_path, options))
