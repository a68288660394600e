"""The modules that define the public names, imported on first use."""

# The names of `fmapviz`.
HOMES = {
    "FmapvizError": "errors",
    "InputOptions": "config",
    "Style": "config",
    "TopImages": "features.top.own_loop",
    "Watch": "features.watch.watch",
    "cam": "features.cam.attribution",
    "capture": "observe.captured",
    "capture_attention": "features.attention.capture.captured",
    "diff": "features.diff.compare",
    "list_layers": "run.layer_list",
    "load_image": "run.batch",
    "load_model": "models.load",
    "model_names": "models.load",
    "receptive_field": "features.fields.receptive_field",
    "tile": "run.tile",
    "top_images": "features.top.top_images",
    "trust": "features.trust.compute",
    "visualize": "run.loop",
}
# What `fmapviz.types` has besides its own.
TYPES = {
    "Captured": "observe.captured",
    "ClassActivation": "features.cam.attribution",
    "Engine": "config",
    "Image": "images.decode",
    "LayerDifference": "features.diff.compare",
    "Part": "config",
    "ReceptiveField": "observe.receptive_field",
    "RunInfo": "config",
    "TopLayer": "features.top.own_loop",
    "TopSummary": "features.top.top_images",
    "Trust": "features.trust.compute",
}
# Where the names are that `fmapviz` had up to version 0.2; version 0.4 drops them.
FORMER = {
    **dict.fromkeys(
        ("InputError", "NothingToDoError", "OutputError", "RefusedError", "RequestError", "UserCodeError", "WeightsError"),
        "errors",
    ),
    **dict.fromkeys(("Counted", "Notice", "Outcome", "RunSummary", "Staged", "Started"), "events"),
    **dict.fromkeys((*TYPES, "FeatureMap", "LayerInfo", "Model", "Picture", "Prediction"), "types"),
}
