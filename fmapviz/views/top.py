"""The images of the run with the largest values of each channel, cropped to what the unit sees.

Two passes: the statistics of all images tell which images have the largest values; these go through the network once more,
which tells where in each image the value is. See `fmapviz.features.top`.
"""

NEEDS = "outputs"
LOOKS = "scale channels"
SCALED = False  # no norm changes it
WITH = "stats"  # which keeps the values of each image
AGGREGATES = "top"
SECOND_PASS = True
PLACED = True
