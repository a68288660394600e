"""Draw the top images of a finished run: only they go through the network again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmapviz.config import InputOptions, Style, check_type, check_weights, explain_arguments, renamed, split
from fmapviz.core import registry
from fmapviz.core.urls import is_url
from fmapviz.errors import RequestError, quote
from fmapviz.events import Notice
from fmapviz.features.top.aggregate import CSV_FILE, KIND
from fmapviz.features.top.of_run import TopStage
from fmapviz.features.top.options import TopOptions
from fmapviz.observe.layers import select_layers
from fmapviz.run.finished_run import open_finished_run
from fmapviz.run.load import needs_of, open_writers
from fmapviz.run.loop import advising, draw_all

if TYPE_CHECKING:
    from torch import nn

    from fmapviz.data import Layer, Model, Weights
    from fmapviz.events import Event
    from fmapviz.features.top.options import Crop
    from fmapviz.run.session import Session
    from fmapviz.store.aggregates.ranking import By


@dataclass(frozen=True, slots=True)
class TopSummary:
    """How `top_images` ended.

    Attributes:
        directory: The run's directory.
        table: The table of the images, `top.csv`.
        pages: The directory of the pages.
        pictures: Number of pages that were written; 0 if they were there already.
        images: Number of images that went through the network again.
        lost: Names of the images that could not be drawn again.
        notices: Remarks for the user.
    """

    directory: Path
    table: Path
    pages: Path | None
    pictures: int
    images: int
    lost: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 if everything is done, 3 if some images could not be drawn again."""
        return 3 if self.lost else 0


@renamed(options="preprocessing")
@explain_arguments
def top_images(
    run: str | Path,
    *,
    layers: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    k: int = 9,
    by: By = "max",
    crop: Crop = "auto",
    channels: str = "all",
    inside: bool = False,
    to: str | Sequence[str] = (),
    force: bool = False,
    model: str | nn.Module | Model | None = None,
    weights: Weights | None = None,
    preprocessing: InputOptions | None = None,
    device: str = "auto",
    workers: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> TopSummary:
    """Draw the images with the largest values of each channel of a finished run.

    The statistics of the run determine these images. They go through the network once more, which locates
    the value in each image. Pages are written beside the run's images, and `top.csv` into its directory.

    Args:
        run: The directory of a run that keeps statistics (`to="stats"`), or its address.
        layers: Globs over dotted names; none means all layers of the run.
        exclude: Globs of names to leave out again.
        k: Number of images per channel, 1 to 100; up to 16 for a run with shards.
        by: Value of the ranking: `max`, the largest value of a channel in an image; `mean`; or `min`, the smallest
            value, smallest first.
        crop: The shown part of an image: `field`, the receptive field; `whole`, all of it with a contour at half of the
            channel's maximum; `auto`, the field if it is smaller than 60 % of the picture in both axes.
        channels: Numbers of the channels to show, such as `0,3,8-15`.
        inside: Whether only positions count whose receptive field lies within the picture; all images are forwarded again.
        to: Formats, such as `png` and `tensorboard`; none means those of the run, or `png`.
        force: Whether to draw again what is drawn already.
        model: The network, if the run does not record its name: what was given to `visualize`.
        weights: The weights, if the run does not record where they are from.
        preprocessing: The preprocessing, if the run does not record it.
        device: See `visualize`.
        workers: Likewise.
        on_event: Called with each `Notice`.

    Raises:
        RequestError: It is no run, keeps no statistics, or an option is out of range. Nothing was written.
        RefusedError: The network, weights, code or preprocessing are others than those of the run.
        NothingToDoError: None of the images can be read any more; earlier pages stay.
        OutputError: The output could not be written.

    Example:
        >>> import tempfile, fmapviz
        >>> with tempfile.TemporaryDirectory() as out:
        ...     run = fmapviz.visualize("shapesnet", "sample_images/shapes", layers="*.2.conv", out=out, to="stats")
        ...     summary = top_images(run.directory, k=3)
        ...     print(summary.images, summary.pictures, summary.table.name)
        6 1 top.csv
    """
    _check_types(run=run, layers=layers, exclude=exclude, channels=channels, inside=inside, to=to, force=force)
    if weights is not None:
        check_weights(weights)
    _check_types(preprocessing=preprocessing, device=device, workers=workers, on_event=on_event)
    listed = None
    with suppress(RequestError):
        listed = Style(channels=channels).listed
    if channels != "all" and listed is None:
        raise RequestError(f"channels must be numbers, not {quote(channels)}", hint="such as channels='0,3,8-15'")
    shown = TopOptions(k=k, by=by, crop=crop, channels=listed or (), inside=inside)
    messages: list[str] = []

    def tell(event: Event) -> None:
        if isinstance(event, Notice):
            messages.append(event.message)
        if on_event:
            on_event(event)

    with open_finished_run(
        run, model=model, weights=weights, preprocessing=preprocessing, device=device, workers=workers, aggregates=[KIND]
    ) as found:
        chosen = _choose_layers(found, split(layers), split(exclude))
        stage = TopStage(shown, None if chosen is found.layers else [layer.name for layer in chosen], force=force)
        with advising():
            draw_all(replace(_with_formats(found, split(to)), stages=[stage]), (), tell)  # its images are done
        drawn = stage.drawn
        address = found.output.address_of(found.directory) if is_url(run) else Path(run)  # as it was given
        pages = address / drawn.unit.name if drawn.unit else None
        return TopSummary(address, address / CSV_FILE, pages, drawn.pictures, drawn.images, drawn.lost, tuple(messages))


_TYPES: dict[str, tuple[Any, str]] = {  # types, and the correction
    "run": (str | Path, "the directory of a finished run, or its address"),
    "layers": (Sequence[str], "globs over dotted names"),
    "exclude": (Sequence[str], "globs over dotted names"),
    "channels": (str, "such as '0,3,8-15'"),
    "inside": (bool, "True or False"),
    "to": (Sequence[str], "names of formats"),
    "force": (bool, "True or False"),
    "preprocessing": (InputOptions | None, "such as InputOptions(fit='pad')"),
    "device": (str, "such as 'cpu' or 'cuda'"),
    "workers": (int | None, "number of images processed at once"),
    "on_event": (Callable | None, "a function of one argument"),
}


def _check_types(**given: object) -> None:
    """Check the types of arguments.

    Raises:
        RequestError: One has another type.
    """
    for name, value in given.items():
        kind, hint = _TYPES[name]
        check_type(name, value, kind, hint=hint)


def _choose_layers(session: Session, layers: Sequence[str], exclude: Sequence[str]) -> Sequence[Layer]:
    """Return the layers of the run that match.

    Raises:
        RequestError: None does.
    """
    if not session.layers:
        raise RequestError(
            f"the run draws no layers: {quote(session.directory)}", hint="draw a run with views='maps', for example"
        )
    if not (layers or exclude):
        return session.layers
    return select_layers(session.layers, types=("Module",), include=layers, exclude=exclude)


def _with_formats(session: Session, asked: Sequence[str]) -> Session:
    """Return the session with the formats in which pages are written.

    Raises:
        RequestError: A format does not exist, shows no pictures, or needs those of all images.
    """
    pages = registry.pages().keys() - session.writers.keys()
    offered = {name: form for name, form in registry.page_formats().items() if name not in pages}
    for form in asked:
        registry.form(form, offered)
        if "pictures" not in needs_of(form):
            raise RequestError(f"the format {quote(form)} shows no pictures", hint="to='png' or to='tensorboard'")
        if registry.form(form).write_film:
            raise RequestError(f"top images are pages, not films: {quote(form)}", hint="to='png' or to='tensorboard'")
        if form in pages:
            raise RequestError(f"the run has no report: {quote(form)} needs one", hint=f"draw the run with to={form!r}")
    forms = asked or [form for form in session.writers if "pictures" in needs_of(form)]
    forms = forms or [name for name, form in registry.formats().items() if form.plain]
    implied = (registry.form(form).format for form in forms)
    writers = open_writers(sorted({*forms, *filter(None, implied)}))
    return replace(session, writers=writers, plan=replace(session.plan, drawn=True, of_model={}))
