"""A detector that needs no training."""

import torch
from torch import nn


class SpotDetector(nn.Module):
    """Finds the brightest square of 8 pixels, of class 1, and perhaps a weak box at the upper left.

    Args:
        score: Makes the score of a square from its mean brightness.
        weak: Side in pixels, class and factor of the score of the other box; None: there is none.
    """

    classes = ("none", "spot")

    def __init__(self, *, score=torch.sigmoid, weak=None):
        super().__init__()
        self.sum = nn.Conv2d(3, 1, 8, stride=8, bias=False)
        nn.init.constant_(self.sum.weight, 1 / 192)
        self.score, self.weak = score, weak

    def forward(self, batch):
        found = []
        for each in self.sum(batch)[:, 0]:
            row, column = divmod(int(each.argmax()), each.shape[1])
            corners, labels, scores = (
                [[8.0 * column, 8.0 * row, 8.0 * column + 8, 8.0 * row + 8]],
                [1],
                [self.score(each.max())],
            )
            if self.weak:
                side, label, factor = self.weak
                corners, labels = [[0.0, 0.0, side, side], *corners], [label, *labels]
                scores = [factor * each[0, 0].sigmoid(), *scores]
            found.append({"boxes": torch.tensor(corners), "labels": torch.tensor(labels), "scores": torch.stack(scores)})
        return found
