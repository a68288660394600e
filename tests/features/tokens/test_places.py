"""Correspondences lie where the evidence is."""

import numpy as np
import pytest
from blobs import AS_IT_IS, NETWORKS, Classifier, blob
from image_files import save_pixels
from tiny_runs import runner

from fmapviz.config import Style
from fmapviz.features.tokens import correspondence


@pytest.fixture(params=NETWORKS)
def network(request):
    return Classifier(NETWORKS[request.param]()).eval()


@pytest.mark.sampled(1)
def test_correspondences_join_the_blobs(tmp_path, network, monkeypatch):
    places = {"a": (34, 40), "b": (50, 62)}
    for name, place in places.items():
        save_pixels(tmp_path / "in" / f"{name}.png", (blob(place)[..., None].repeat(3, 2) * 255).astype(np.uint8))
    style = Style(anchor="a.png:34,40")
    seen = []
    plain = correspondence.best_pair
    monkeypatch.setattr(correspondence, "best_pair", lambda *given, **named: seen.append(plain(*given, **named)) or seen[-1])
    run = runner(lambda: network, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"], layers=["features"], style=style)
    run([tmp_path / "in"], views=["correspondence"], workers=1)
    pairs = [pair for found in seen for pair in found]
    assert pairs
    for pair in pairs:
        assert (abs(np.array(pair.theirs) - (34.5, 40.5)) <= 9).all()
