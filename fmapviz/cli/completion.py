"""What may be typed: a command line whose first word need not be `run`, and what the shell completes."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from fmapviz import registry
from fmapviz.errors import RequestError, quote
from fmapviz.models import known_names
from fmapviz.options import COLORMAPS
from fmapviz.registry import VIEWS, WRITERS

WEIGHTS = {
    "default": "the model's best published weights",
    "random": "freshly initialised, repeatable",
}


class RunByDefault(TyperGroup):
    """A group of commands that takes `fmapviz MODEL INPUT...` to mean `fmapviz run MODEL INPUT...`."""

    # Any: the classes of contexts and completions are not public.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command's name first, wherever it stands, or `run` where there is none."""
        words = list(args) or ["--help"]
        if words[0] not in self._own_options(ctx):
            position = self._first_word(ctx, words)
            if position is not None and words[position] in self.commands:
                words.insert(0, words.pop(position))
            else:
                words.insert(0, "run")
        return super().parse_args(ctx, words)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete a model's name where a command's could stand."""
        run = self.commands["run"]
        if incomplete.startswith("-"):
            return [*super().shell_complete(ctx, incomplete), *run.shell_complete(ctx, incomplete)]
        model = next(parameter for parameter in run.params if parameter.name == "model")
        return [*super().shell_complete(ctx, incomplete), *model.shell_complete(ctx, incomplete)]

    def _own_options(self, ctx: Any) -> set[str]:
        return {option for parameter in self.get_params(ctx) for option in parameter.opts}

    def _first_word(self, ctx: Any, words: list[str]) -> int | None:
        """Find the first word that is neither an option nor an option's value."""
        takes_value = {
            option: not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
            for command in self.commands.values()
            for parameter in command.get_params(ctx)
            for option in parameter.opts
        }
        position = 0
        while position < len(words):
            word = words[position]
            if word == "--":
                return None
            if not word.startswith("-") or word == "-":
                return position
            position += 2 if takes_value.get(word) else 1
        return None


def complete_models(incomplete: str) -> list[str]:
    """Complete a model's name."""
    return [name for name in known_names() if name.startswith(incomplete)]


def complete_weights(incomplete: str) -> list[tuple[str, str]]:
    """Complete the words that `--weights` knows."""
    return [(word, text) for word, text in WEIGHTS.items() if word.startswith(incomplete)]


def complete_views(incomplete: str) -> list[tuple[str, str]]:
    """Complete one view, or the last of several separated by commas."""
    return _complete_list(VIEWS, incomplete)


def complete_formats(incomplete: str) -> list[tuple[str, str]]:
    """Complete one format, or the last of several separated by commas."""
    return _complete_list(WRITERS, incomplete)


def members_help(package: str) -> str:
    """List a package's members with what they are, for `--help`."""
    return "".join(f"\n\n- {name}: {registry.describe(package, name)}" for name in registry.names(package))


def complete_fits(incomplete: str) -> list[str]:
    """Complete a way of fitting."""
    return _complete_word(("crop", "squash", "pad", "none"), incomplete)


def complete_norms(incomplete: str) -> list[str]:
    """Complete a normalisation."""
    return _complete_word(("channel", "layer", "signed", "run", "fixed:"), incomplete)


def complete_colormaps(incomplete: str) -> list[str]:
    """Complete a colour map's name."""
    return _complete_word(COLORMAPS, incomplete)


def complete_devices(incomplete: str) -> list[str]:
    """Complete a device."""
    return _complete_word(("auto", "cpu", "cuda", "mps"), incomplete)


def split(values: list[str]) -> tuple[str, ...]:
    """Take apart what was given several times, or once with commas.

    Example:
        >>> split(["png,tensorboard", "png"])
        ('png', 'tensorboard')

    Raises:
        RequestError: There is no name in it.
    """
    names = tuple(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))
    if values and not names:
        raise RequestError(f"a list without a name in it: {quote(','.join(values))}")
    return names


def _complete_word(words: tuple[str, ...], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _complete_list(package: str, incomplete: str) -> list[tuple[str, str]]:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = (name for name in registry.names(package) if name.startswith(last) and name not in given)
    return [(f"{before}{comma}{name}", registry.describe(package, name)) for name in names]
