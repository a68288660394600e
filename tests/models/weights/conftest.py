"""What the tests of weights files share."""

import pytest
import torch


@pytest.fixture
def save(tmp_path):
    """Save an object as a file with `torch.save`; return its path as it is typed."""

    def write(content, name="weights.pth", **how):
        torch.save(content, tmp_path / name, **how)
        return str(tmp_path / name)

    return write
