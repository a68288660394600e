"""Compare the channel vectors at the positions of maps: cosines, clusters, foreground, matches."""

from fmapviz.core.members import HEAT_LOOKS, Contribution, LayerView

_LOOKS = ("scale", "labels", "background", "text_size")

CONTRIBUTION = Contribution(
    stages=("fmapviz.features.tokens.survey.first_pass:SurveyStage",),
    views=(
        LayerView(
            name="pca",
            words="pca-rgb principal-components components",
            help="First three principal components of each layer's channels, as red, green and blue.",
            looks=(*_LOOKS, "smooth", "with_input", "pca", "foreground"),
            placed=True,
            shares="components",
            draw="fmapviz.features.tokens.pca:draw",
        ),
        LayerView(
            name="similarity",
            words="cosine cosine-similarity cos-sim affinity",
            help="Cosine similarity of each position of a layer to one position, over the input.",
            looks=("norm", *HEAT_LOOKS, "smooth", "anchor"),
            placed=True,
            scaled=False,
            values=True,
            anchor="position",
            draw="fmapviz.features.tokens.similarity:draw",
        ),
        LayerView(
            name="clusters",
            words="kmeans k-means clustering segments cluster",
            help="Clusters of each layer's positions over all images (k-means), each cluster in one colour.",
            looks=(*_LOOKS, "with_input", "colorbar", "clusters"),
            placed=True,
            scaled=False,
            values=True,
            surveyed=True,
            draw="fmapviz.features.tokens.clusters:draw",
        ),
        LayerView(
            name="correspondence",
            words="matching matches match correspondences keypoints",
            help="Positions of each layer that match those of another image best, as numbered points in both pictures.",
            looks=(*_LOOKS, "anchor"),
            placed=True,
            scaled=False,
            values=True,
            anchor="image",
            draw="fmapviz.features.tokens.correspondence:draw",
        ),
    ),
)
