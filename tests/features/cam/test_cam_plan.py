"""What a run plans for views that differentiate class scores."""

from fmapviz.features.cam import CONTRIBUTION
from fmapviz.run.plan import make_plan

NAMES = [view.name for view in CONTRIBUTION.views]


def test_each_method_has_its_classes():
    plan = make_plan(NAMES, targets=["top2", "star"], classes=("circle", "star"), output="out", automatic=True)
    assert [each.label for each in plan.targets] == ["top1", "top2", "star"]
    (cams,) = plan.observations
    assert cams.methods.keys() == {*NAMES}
    assert plan.sheets.keys() == {"sheet"}
    for name, method in cams.methods.items():
        assert method.targets == (() if name == "eigencam" else plan.targets)
        assert method.of_pixels == (name == "saliency")
        assert method.view.over == (name != "saliency")
        assert method.sheet == (name == "sheet")


def test_only_a_sheet_has_several_classes_by_default():
    plan = make_plan(NAMES, targets=(), classes=(), output=None, automatic=True)
    assert [each.label for each in plan.targets] == ["top1"]
    cams = plan.observations[0]
    for name, method in cams.methods.items():
        labels = {"sheet": ["top1", "top2", "top3"], "eigencam": []}.get(name, ["top1"])
        assert [each.label for each in method.targets] == labels
    assert [each.label for each in plan.wanted] == ["top1", "top2", "top3"]
