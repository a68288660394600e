"""How the README's small picture of each view is drawn: the image and the options."""

STAR = "shapes/star.jpg"
CHANNELS = ["--channels=1,2,4-6,8-10,12", "--columns=3", "--padding=3", "--size=152"]
GRADIENTS = ["shapes/circle.jpg", "--layers=features.5.conv", "--norm=signed", "--channels=top:4:std", "--no-labels"]
TILES = ["--columns=2", "--padding=8", "--scale=9"]
# In one layer, neither early nor last, the class activation maps differ most.
EVIDENCE = [STAR, "--layers=features.5"]
SUMMARY = [STAR, "--size=240", "--types=ReLU", "--layers=features.5.relu"]
VIEWS = {
    "maps": [STAR, "--layers=features.0.conv", *CHANNELS],
    "inputs": [STAR, "--layers=features.1.conv", *CHANNELS],
    "grads": [*GRADIENTS, *TILES],
    "grad-inputs": [*GRADIENTS, *TILES],
    "gradcam": EVIDENCE,
    "gradcam++": EVIDENCE,
    "layercam": EVIDENCE,
    "hirescam": EVIDENCE,
    "xgradcam": EVIDENCE,
    "eigencam": EVIDENCE,
    "cam": ["shapes.png", "--target=ring", "--size=240x320", "--fit=squash"],
    "saliency": ["shapes/triangle.jpg", "--size=120"],
    "sheet": [STAR, "--target=star,cross", "--layers=features.5", "--layers=features.7"],
    "mean": SUMMARY,
    "max": SUMMARY,
    "pca": [STAR, "--size=240", "--layers=features.2.conv"],
    "contact": [STAR, "--exclude=features.7.conv"],
    "histogram": [STAR, "--layers=features.4.conv"],
    "kernels": [STAR, "--layers=features.0.conv", "--channels=0-8", "--columns=3", "--scale=9", "--padding=6"],
}
# Left, top, right and bottom of a part that is legible when small.
PARTS = {"histogram": (160, 32, 348, 220)}
