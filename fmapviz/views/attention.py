"""Attention of each head: how much the class token, or the patch at `--query`, looks at each patch.

`softmax(q k' scale + mask)`, one tile for each head; q is the query's vector, k those of all tokens. Without a class token
it is the mean over all patches. Prefix tokens are left out, so that the weights of a tile add up to at most 1.

Vaswani et al., "Attention Is All You Need", 2017; Caron et al., "Emerging Properties in Self-Supervised Vision
Transformers", 2021, for the pictures.
"""

from fmapviz.views.maps import draw

NEEDS = "attention"
LOOKS = "norm columns padding channels scale colormap labels background text_size with_input colorbar query"

__all__ = ["LOOKS", "NEEDS", "draw"]
