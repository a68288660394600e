"""Films of a run's pictures: MP4 and GIF."""

from fmapviz.core.members import Contribution, Format

CONTRIBUTION = Contribution(
    stages=("fmapviz.features.films.films:FilmStage",),
    formats=(
        Format(
            name="gif",
            words="animation animated apng",
            help="An animated GIF of each layer and view.",
            unit_files=("*.gif",),
            format="png",  # the sources of films
            local=True,
            open_writer="fmapviz.features.films.gif:open_writer",
            write_film="fmapviz.features.films.gif:write_film",
        ),
        Format(
            name="mp4",
            words="video film movie avi mov mkv webm",
            help="A film of each layer and view, H.264.",
            requires="av",
            extra="video",
            unit_files=("*.mp4",),
            format="png",
            local=True,
            open_writer="fmapviz.features.films.mp4:open_writer",
            write_film="fmapviz.features.films.mp4:write_film",
        ),
    ),
)
