"""Queries and rollouts lie where the patches of the network lie."""

from functools import partial

import numpy as np
import pytest
from image_files import save_pixels, text_of
from tiny_runs import runner
from torch import nn

from fmapviz.config import InputOptions, Style
from fmapviz.features.attention import observer

AS_IT_IS = InputOptions(fit="none", mean=(0.0,), std=(1.0,))
SIZE = (90, 110)


class Patches(nn.Module):
    """Attention between patches of 16 x 16 pixels, which do not cover the picture, behind a border that is cut off."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.patches(x[..., 5:, 7:]).flatten(2).mT
        return self.head((tokens + self.attention(tokens, tokens, tokens)[0]).mean(1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("at", [(17, 17), (20, 23), (30, 40), (89, 109), (0, 0)])
def test_a_query_is_the_patch_whose_centre_is_nearest(tmp_path, at):
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    style = Style(query=f"{at[0]},{at[1]}")
    run = runner(Patches, out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"], style=style)
    unit = run([tmp_path / "a.png"], views=["attention", "rollout"]).directory / "a.png"
    centres = [start + 8 + 16 * np.arange(count) for start, count in ((5, 5), (7, 6))]
    row, column = (int(abs(line - place - 0.5).argmin()) for line, place in zip(centres, at, strict=True))
    for view in ("attention", "rollout"):
        facts = text_of(next(unit.glob(f"*.{view}.png")))
        assert f"(patch {row}, {column} of 5 x 6)" in facts["Attention of"]


class Cropped(Patches):
    """Most uncovered pixels are more than a patch away from all patches."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, x):
        return super().forward(x[..., self.before - 5 : self.before + 5 + 48, self.before - 7 : self.before + 7 + 48])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", [7, 14, 24, 33])
def test_a_rollout_lies_at_its_patches_and_marks_uncovered_pixels(tmp_path, monkeypatch, before):
    drawn = []
    plain = observer.draw_map
    monkeypatch.setattr(
        observer, "draw_map", lambda *given, **named: drawn.append(named["centres"]) or plain(*given, **named)
    )
    save_pixels(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8))
    run = runner(partial(Cropped, before), out=tmp_path / "out", preprocessing=AS_IT_IS, to=["png"])
    run([tmp_path / "a.png"], views=["rollout"])
    (centres,) = drawn
    for places in (centres.rows, centres.columns):
        assert places.tolist() == [before + 8, before + 24, before + 40]
    expected = np.ones(SIZE, bool)
    begin = before if before >= 16 else 0
    expected[begin : before + 48 if SIZE[0] - before - 48 >= 16 else None, begin : before + 48] = False
    unseen = centres.unseen(SIZE)
    assert (unseen == expected).all()
