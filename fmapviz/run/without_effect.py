"""Report options that have no effect on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmapviz.config import InputOptions, RunConfig, Style, options_of
from fmapviz.config.changes import unused_changes
from fmapviz.core import registry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fmapviz.run.plan import Plan

# The looks that change no value that a format of numbers stores.
_LOOKS = (
    "norm", "columns", "padding", "channels", "scale", "colormap", "alpha", "gray_input", "labels", "colorbar", "background",
    "text_size", "with_input", "smooth",
)  # fmt: skip


def without_effect(config: RunConfig, plan: Plan, *, idle: Sequence[str], predicts: bool) -> Iterator[str]:
    """Yield a notice for options that were set and have no effect.

    Args:
        config: As requested.
        plan: Reduced to what the formats need.
        idle: The options of the style that no view takes, see `fmapviz.config.looks`.
        predicts: Whether classes are predicted.
    """
    views = ", ".join(config.views)
    if config.targets and not plan.wanted:
        yield f"targets= has no effect: {views} shows no class; the page layers-and-views of the guide lists views that do"
    if idle:
        yield f"{_listed(idle)} no effect on {views}; the page looks of the guide lists what each view takes"
    given = [name for name in _given(config) if name not in idle]
    for names, why in _rules(config, plan, predicts=predicts):
        if found := [name for name in given if name in names]:
            yield f"{_listed(found)} no effect {why}"


def _rules(config: RunConfig, plan: Plan, *, predicts: bool) -> Iterator[tuple[Collection[str], str]]:
    """Yield groups of options without effect on this run, with the reason as the end of a sentence."""
    views = ", ".join(config.views)
    yield unused_changes(config.views), f"on {views}"
    if not plan.drawn:
        yield _LOOKS, f"on {', '.join(config.to)}: no pictures are written"
    elif plan.networks == 1 and not _has_text(config, plan):
        lettered = ["text_size"] if _has_background(config) else ["text_size", "background"]
        yield lettered, "without a text: labels=True or colorbar=True draws one"
    if plan.kept is None and plan.networks == 1:
        storing = [name for name, form in registry.formats().items() if "values" in form.needs]
        yield ["dtype"], f"on {', '.join(config.to)}: only {', '.join(storing)} store values"
    if not plan.of_images:
        yield (
            ["predictions", "output", "scores", "confidence", "size", "fit", "mean", "std"],
            f"on {views}: no image is needed",
        )
    elif not (plan.of_classes or predicts):
        directory = "; out= is the directory of the results" if config.output else ""
        read = {option for view in config.views for option in registry.view(view).options}
        yield (
            {"output", "scores", "confidence"} - read,
            f"while no class is shown or predicted; predictions=3 predicts{directory}",
        )
    if plan.of_images and not (plan.of_layers or plan.of_model or plan.of_maps or plan.of_modules):
        yield ["layers", "exclude", "types"], f"on {views}: it is of the input, not of layers"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(f'{name}=' for name in names)} {'has' if len(names) == 1 else 'have'}"


def _given(config: RunConfig) -> list[str]:
    """Return the options whose values differ from their defaults."""
    parts = ((config, RunConfig), (config.style, Style), (config.preprocessing, InputOptions))
    defaults = {RunConfig: RunConfig(model=config.model), Style: Style(), InputOptions: InputOptions()}
    return [
        name
        for values, kind in parts
        for name in options_of(kind)
        if name not in {"model", "inputs"} and getattr(values, name) not in (getattr(defaults[kind], name), None)
    ]


def _has_text(config: RunConfig, plan: Plan) -> bool:
    """Return True if a picture has numbers, a header, a caption or a colour bar."""
    style, looks = config.style, _looks(config)
    if style.labels or (style.colorbar and "colorbar" in looks):
        return True
    numbers = style.strongest and "channels" in looks
    return style.labels is None and bool(numbers or any(each.captioned for each in plan.observations))


def _has_background(config: RunConfig) -> bool:
    """Return True if a picture has background around its tiles."""
    return config.style.with_input or "padding" in _looks(config)


def _looks(config: RunConfig) -> set[str]:
    return {name for view in config.views for name in registry.view(view).looks}
