"""The command group that runs `run` by default, and shell completion."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from fmapviz.core import registry
from fmapviz.models.load import known_names


class RunByDefault(TyperGroup):
    """A group of commands in which `fmapviz MODEL INPUT...` is short for `fmapviz run MODEL INPUT...`."""

    # Any: the classes of contexts and completions are not public.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the name of the command to the front, or insert `run`."""
        words = list(args) or ["--help"]
        if words[0] not in {option for parameter in self.get_params(ctx) for option in parameter.opts}:
            position = self._first_word(ctx, words)
            if position is not None and words[position] in self.commands:
                words.insert(0, words.pop(position))
            else:
                words.insert(0, "run")
        return super().parse_args(ctx, words)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete names of commands and of models."""
        run = self.commands["run"]
        if incomplete.startswith("-"):
            return [*super().shell_complete(ctx, incomplete), *run.shell_complete(ctx, incomplete)]
        model = next(parameter for parameter in run.params if parameter.name == "model")
        return [*super().shell_complete(ctx, incomplete), *model.shell_complete(ctx, incomplete)]

    def _first_word(self, ctx: Any, words: list[str]) -> int | None:
        """Return the position of the first word that is neither an option nor the value of one."""
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
    """Complete the name of a model."""
    return [name for name in known_names() if name.startswith(incomplete)]


def members_help(package: str) -> str:
    """Return a list of the members of a package with their descriptions, for `--help`."""
    return "".join(f"\n\n- {name}: {registry.describe(package, name)}" for name in registry.names(package))


def complete_members(package: str, incomplete: str) -> list[tuple[str, str]]:
    """Complete the last of several members of a package, separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    names = (name for name in registry.names(package) if name.startswith(last) and name not in given)
    return [(f"{before}{comma}{name}", registry.describe(package, name)) for name in names]
