"""A command that refuses two values of an option that takes one, of which the parser would silently take the last."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from typer.core import TyperOption

from fmapviz.cli.help import HelpCommand
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator


class Command(HelpCommand):
    """A command of fmapviz."""

    # Any: the class of contexts is not public.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command.

        Raises:
            RequestError: An option that takes one value has two.
        """
        words = list(args)  # parsing empties the list
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            for option, (first, *_, last) in self._repeated(ctx, words):
                raise _refusal(option, first, last, others=[name for each in self.params for name in each.opts])
        return rest

    # Any: as above.
    def _repeated(self, ctx: Any, words: list[str]) -> Iterator[tuple[TyperOption, list[Any]]]:
        """Yield the options that have different values, with all of these."""
        single = [each for each in self.params if isinstance(each, TyperOption) and not each.multiple and not each.count]
        collecting = copy(self)
        collecting.params = [_collecting(each) if each in single else each for each in self.params]
        given, _, _ = collecting.make_parser(ctx).parse_args(args=words)
        for option in single:
            values = given.get(option.name, [])
            if len(dict.fromkeys(values)) > 1:
                yield option, values


def _collecting(option: TyperOption) -> TyperOption:
    """Return a copy of an option that keeps each of its values."""
    option = copy(option)
    option.multiple = True
    return option


def _refusal(option: TyperOption, first: object, last: object, *, others: list[str]) -> RequestError:
    name = max(option.opts, key=len)
    if option.is_flag:
        return RequestError(f"{name} and {option.secondary_opts[0]} exclude each other", hint="give one of them")
    hint = f"--against {last} compares the two" if name == "--weights" and "--against" in others else "it takes one value"
    return RequestError(f"{name} is given twice: {quote(first)} and {quote(last)}", hint=hint)
