"""Output formats: one module per format, whose contract is in `base`."""

from fmapviz.core.members import Contribution, Format

CONTRIBUTION = Contribution(
    formats=(
        Format(
            name="tensorboard",
            words="tb events tfevents tensorboardx summarywriter summary-writer",
            help="Image summaries for TensorBoard, one run per image.",
            unit_files=("events.out.tfevents.fmapviz",),
            lasting=(("events.out.tfevents.fmapviz", "fmapviz.formats.tensorboard.event_file:lasting_digest"),),
            many=True,
            open_with="tensorboard --logdir {out}",
            # TensorBoard shows ten images of a tag by default, and none of them for 0, which its help calls "all" (2.21,
            # both loaders). How many steps a training will have is unknown; a number that is too large costs nothing.
            open_steps_with="tensorboard --logdir {out} --samples_per_plugin images=1000000",
            open_module="tensorboard.main",
            crowd=40,  # runs, `maxNamesToEnableByDefault` in TensorBoard's `tf-multi-checkbox.ts`
            crowded="TensorBoard ticks none of more than 40 runs: click TOGGLE ALL RUNS on its page Images",
            open_writer="fmapviz.formats.tensorboard:open_writer",
            read_pictures="fmapviz.formats.tensorboard:read_pictures",
            write_series="fmapviz.formats.tensorboard.series:write_series",
        ),
        Format(
            name="png",
            words="jpg jpeg image images picture pictures files webp bmp tif tiff",
            help="One PNG file per picture.",
            unit_files=("input.png", "*.png"),
            plain=True,
            open_writer="fmapviz.formats.png:open_writer",
            read_pictures="fmapviz.formats.png:read_pictures",
        ),
        Format(
            name="html",
            words="report page web htm website browser",
            help="A report, index.html, to open in a browser, with PNG files beside it.",
            needs=("pictures", "measures", "fields"),
            unit_files=("report.js", "pixels.js"),
            lasting=(("report.js", ""),),  # it names images by their paths, as the next one
            run_files=("index.html", "stats.js", "steps.js"),
            aggregates=("images",),
            format="png",  # the page shows these files
            page="index.html",
            open_writer="fmapviz.formats.html:open_writer",
            publish="fmapviz.formats.html:publish",
        ),
        Format(
            name="stats",
            words="csv json table statistics numbers-table parquet xlsx excel",
            help="Statistics of every channel over all images of the run, as a table and as JSON; no pictures.",
            needs=("measures",),
            unit_files=("stats.safetensors", "stats.parquet", "ranking.parquet"),
            lasting=(("ranking.parquet", ""),),
            aggregates=("statistics",),
            many=True,
            open_writer="fmapviz.formats.stats:open_writer",
        ),
        Format(
            name="raw",
            words="safetensors pt pth tensor tensors hdf5 h5 torch",
            help="One safetensors file per image with the raw values, a tensor per layer.",
            needs=("values",),
            unit_files=("raw.safetensors",),
            open_writer="fmapviz.formats.raw:open_writer",
        ),
        Format(
            name="npz",
            words="npy numpy np array arrays",
            help="One NumPy archive per image with the raw values, an array per layer.",
            needs=("values",),
            unit_files=("raw.npz",),
            open_writer="fmapviz.formats.npz:open_writer",
        ),
        Format(
            name="tar",
            words="webdataset wds zip archive",
            help="One tar archive per image or shard, as WebDataset reads it.",
            unit_files=("pictures.tar",),
            lasting=(("pictures.tar", "fmapviz.formats.tar:lasting_digest"),),
            many=True,
            open_writer="fmapviz.formats.tar:open_writer",
            read_pictures="fmapviz.formats.tar:read_pictures",
        ),
        Format(
            name="svg",
            help="One SVG file per picture, for papers: texts as text.",
            unit_files=("*.svg",),
            open_writer="fmapviz.formats.svg:open_writer",
        ),
        Format(
            name="channels",
            help="One PNG file per channel of each grid.",
            only_of=("maps", "inputs", "grads", "grad-inputs", "attention", "kernels"),
            unit_files=("*.channel*.png",),
            open_writer="fmapviz.formats.channels:open_writer",
        ),
    )
)
