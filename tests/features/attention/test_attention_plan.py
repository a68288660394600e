"""What a run plans for views of attention."""

from fmapviz.features.attention import CONTRIBUTION
from fmapviz.run.plan import make_plan


def test_the_views_share_an_observation():
    names = [view.name for view in CONTRIBUTION.views]
    plan = make_plan(names, targets=["star"], classes=("circle", "star"), output="out", automatic=True)
    (attention,) = plan.observations
    assert (attention.heads, attention.flows) == ({"attention"}, True)
    assert attention.targets == plan.targets
    assert plan.draws["attention"].keys() == {"attention"}
