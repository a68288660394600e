"""The values in the catalogue: views, output formats, sources of models and run-level results.

A package that contributes to the catalogue has a value `CONTRIBUTION`, and `fmapviz.catalogue` lists its name. Code is named
by a reference, `module:attribute`, and imported on first use: the values are read by `--help`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal

from fmapviz.core.platforms import in_shell, python_in_shell

# The data that a format needs.
Need = Literal["pictures", "measures", "values", "fields"]
Example = tuple[str, str]  # a command line, and what it does

# Options of a style that change a grid, and a heat map over the input.
GRID_LOOKS = (
    "norm", "columns", "padding", "channels", "scale", "colormap", "labels", "background", "text_size", "with_input",
    "colorbar",
)  # fmt: skip
HEAT_LOOKS = (
    "scale", "colormap", "alpha", "gray_input", "labels", "background", "text_size", "with_input", "colorbar",
)  # fmt: skip


def load(reference: str) -> Any:  # Any: code of all kinds is referred to
    """Import the object that a reference names.

    Example:
        >>> load("fmapviz.core.words:counted")(2, "image")
        '2 images'
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMember:
    """Anything that has a name on the command line.

    Attributes:
        name: The name.
        help: One sentence for `--help`.
        words: Words of other tools for it, separated by blanks.
        requires: A package that it needs.
        extra: The extra that installs this package; empty: the extra has the member's name.
    """

    name: str
    help: str
    words: str = ""
    requires: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested(NamedMember):
    """A member that a run may request: a view or a format.

    Attributes:
        aggregates: Run-level results that its run has.
        format: A format that its run writes besides those that are asked for.
        run_files: Names of run-level files that it makes itself.
        own: The code of a view or format of the user, see `fmapviz.core.own`; else None.
    """

    aggregates: tuple[str, ...] = ()
    format: str = ""
    run_files: tuple[str, ...] = ()
    own: Any = None  # of the user

    def load(self, reference: str) -> Any:  # Any: as `load`
        """Import a function that it names; that of a user's member takes the member as its first argument."""
        return load(reference) if self.own is None else partial(load(reference), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Requested):
    """A view, without its code. It is of one of the kinds below, or of a kind that a feature adds.

    Attributes:
        looks: The options of a style that change its pictures.
        ranged: Whether the norm `run` changes its pictures, although `norm` does not otherwise.
        observe: Reference of the function that plans what it sees of a pass, see `fmapviz.run.plan`; empty: it sees the
            outputs or inputs of chosen layers.
        images: Whether it needs images, and not only the network.
        networks: Number of networks that it draws side by side.
        compose: Reference of a function that composes the maps of all layers to one picture; empty: each is a picture.
        over: Whether its maps are drawn over the input.
        placed: Whether it needs the position of each of a layer's values in the input, as maps over the input do.
        scaled: Whether a range of all images changes it.
        values: Whether what it draws are values too, which the formats of raw values store.
        anchor: The kind of anchor that it needs: a `position` or an `image`; empty: none.
        paged: Whether it draws pages of many images, and no picture of a single one.
        surveyed: Whether its values depend on all images of the run.
        shares: Values that all images of a run share if the style requests it.
        options: The options that change what it draws, of `fmapviz.config.changes` and those of class scores.
        method: Whether it is a map of a class that `fmapviz.cam` computes.
    """

    looks: tuple[str, ...] = ()
    ranged: bool = False
    observe: str = ""
    images: bool = True
    networks: int = 1
    compose: str = ""
    over: bool = True
    placed: bool = False
    scaled: bool = True
    values: bool = False
    anchor: Literal["", "position", "image"] = ""
    paged: bool = False
    surveyed: bool = False
    shares: str = ""
    options: tuple[str, ...] = ()
    method: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView(View):
    """A view of the output or input of one layer, see `fmapviz.views.base`.

    Attributes:
        captures: The drawn tensor of the layer: its `output`, its `input`, the `gradient` at the output, or the
            `input gradient`; a view with `observe` may capture others.
        draw: Reference of the function that draws it; empty: single images have no picture.
    """

    captures: str = "output"
    draw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedView(View):
    """A view that reduces all channels of a layer to one map, see `fmapviz.views.base`.

    Attributes:
        placed: As of `View`.
        captures: The reduced tensor.
        reduce: Reference of the function that reduces it.
        colormap: Colour map unless the style names one; empty: that of all heat maps.
        sharp: Whether its values are enlarged to rectangles, unless the style is `smooth`.
    """

    placed: bool = True
    captures: str = "output"
    reduce: str
    colormap: str = ""
    sharp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView(View):
    """A view of a layer's weights, see `fmapviz.views.base`.

    Attributes:
        read: Reference of the function that reads it.
        draw: Reference of the function that draws it.
    """

    images: bool = False
    read: str
    draw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format(Requested):
    """An output format, see `fmapviz.formats.base`.

    Attributes:
        needs: The data that it writes.
        networks: Number of networks that it takes.
        only_of: The views of which it writes something; empty: all that have what it needs.
        unit_files: Patterns of the names of its files in a unit.
        plain: Whether pictures are written in it if no format is asked for and no page collects them.
        lasting: Names of its files in a unit that hold a time or the path of an image, each with the reference of a function
            that takes the open file and returns the SHA-256 of the rest; empty: nothing of it counts for the run's digest.
        many: Whether a unit may hold many images, which shards need.
        local: Whether it needs a local directory.
        page: One of the run-level files, which a browser opens; empty: none.
        open_with: The command that opens the results; `{out}` is the directory of all runs.
        open_steps_with: The same where a picture has many steps.
        open_module: The module that Python runs instead, if the shell does not find the program of these commands.
        crowd: The number of units below `{out}` above which `crowded` must be said of that command; 0: no number.
        crowded: The notice in that case.
        open_writer: Reference of the function that opens a writer.
        read_pictures: Reference of the function that reads the pictures of a unit; empty: it has no PNG files in it.
        publish: Reference of the function that makes its run-level files; empty: it has none.
        write_series: Reference of the function that writes all steps of a series; empty: the format does not collect them.
        write_film: Reference of the function that writes one picture of many images as a film; empty: it writes none.
    """

    needs: tuple[Need, ...] = ("pictures",)
    networks: int = 1
    only_of: tuple[str, ...] = ()
    unit_files: tuple[str, ...] = ()
    plain: bool = False
    lasting: tuple[tuple[str, str], ...] = ()
    many: bool = False
    local: bool = False
    page: str = ""
    open_with: str = ""
    open_steps_with: str = ""
    open_module: str = ""
    crowd: int = 0
    crowded: str = ""
    open_writer: str
    read_pictures: str = ""
    publish: str = ""
    write_series: str = ""
    write_film: str = ""

    def open_command(self, out: str, *, has_steps: bool) -> str:
        """Return the command that opens the results, as it is typed in this shell; empty if there is none.

        Args:
            out: The directory of all runs.
            has_steps: Whether a picture has many steps.
        """
        command = self.open_steps_with if has_steps else self.open_with
        program, _, options = command.partition(" ")
        if program and self.open_module and not shutil.which(program):
            command = f"{python_in_shell('-m', self.open_module)} {options}"
        return command.replace("{out}", in_shell(out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(NamedMember):
    """A source of models, see `fmapviz.models.sources.base`. Its name is the prefix of its models' names.

    Attributes:
        names: Names of models that need no prefix.
        spelling: A regular expression that matches all other names, with their prefix; empty: there are none.
        is_code: Whether such a name is a reference to user code, as `fmapviz.core.user_code` parses it.
        takes_arguments: Whether arguments may follow a name, as in `resnet18(num_classes=5)`.
        pickled: Modules of classes in the pickled networks that it reads: the path of such a file needs no prefix.
        module: Name of the module.
    """

    names: tuple[str, ...] = ()
    spelling: str = ""
    is_code: bool = False
    takes_arguments: bool = False
    pickled: tuple[str, ...] = ()
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector(NamedMember):
    """A family of networks that return boxes.

    Attributes:
        classes: A regular expression of the names of their classes, `module.Class`.
        others: Likewise, of classes derived from these that return no boxes; empty: there are none.
        captures: Paths of modules whose outputs `read` needs, of those that the network has.
        thresholds: Paths of the attributes, of those that the network has, that hold the lowest score of a box that it
            returns. A pass with another lowest score sets them meanwhile.
        feeds: Reference of a function of the network that returns the paths of the modules whose outputs its head reads, of
            all scales; empty: heat maps are of a layer as of any other network.
        read: Reference of a function of a `fmapviz.observe.forward_record.ForwardRecord`, with the output of the network and
            of these modules, and of the lowest score of a box that counts, None for the network's own. It returns the
            `fmapviz.observe.boxes.Boxes` of each image.
    """

    classes: str
    others: str = ""
    captures: tuple[str, ...] = ()
    thresholds: tuple[str, ...] = ()
    feeds: str = ""
    read: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(NamedMember):
    """A result over all images of a run, see `fmapviz.store.aggregates.base`.

    Attributes:
        reads: Names of the files of a unit that it is made from, besides the record.
        run_files: Names of the run-level files that it makes.
        unit: Name of the unit that it is made from, if it is only one; else empty.
        command: Command that draws this unit.
        scalars: Reference of a function that returns the numbers of its summary at each step of a series, as steps, tags and
            values; empty: there are none.
        module: Name of the module.
    """

    reads: tuple[str, ...] = ()
    run_files: tuple[str, ...] = ()
    unit: str = ""
    command: str = ""
    scalars: str = ""
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPart:
    """A part of the report that a feature adds.

    Attributes:
        script: Path of its JavaScript module in the package, which exports `register`; see `formats/html/registry.js`.
        data: Reference of a function that returns further data of the page, by name. It takes the run's directory, its units
            (see `fmapviz.store.aggregates.images`) and the summaries of its aggregates by their names.
        style: Path of its style sheet in the package, which follows `formats/html/report.css`; empty without one.
    """

    script: str
    data: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand(NamedMember):
    """A command, such as `fmapviz diff`, without its code.

    Attributes:
        function: Reference of the function that it calls.
        examples: Command lines at the head of its help, each with a phrase that says what it does.
    """

    function: str
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """The contribution of a package to the catalogue.

    Attributes:
        views: Views.
        formats: Output formats.
        sources: Sources of models.
        detectors: Families of detectors.
        aggregates: Run-level results.
        stages: References of classes of stages, see `fmapviz.run.session.Stage`.
        report: Parts of the report.
        commands: Commands.
        examples: Examples of `fmapviz run`.
    """

    views: tuple[View, ...] = ()
    formats: tuple[Format, ...] = ()
    sources: tuple[Source, ...] = ()
    detectors: tuple[Detector, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    stages: tuple[str, ...] = ()
    report: tuple[ReportPart, ...] = ()
    commands: tuple[Subcommand, ...] = ()
    examples: tuple[Example, ...] = ()
