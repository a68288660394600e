"""A command that refuses two values of an option that takes one, and takes the former names of options."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from typer.core import TyperOption

from fmapviz.cli.former import FORMER
from fmapviz.cli.help import HelpCommand, keep_texts
from fmapviz.cli.printing import print_message
from fmapviz.cli.settings import print_settings, take_effect
from fmapviz.errors import RequestError, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

# What else a former name may have been meant for.
_NOT_MEANT = {"--seed": "; --weights random:SEED seeds random weights"}


class Command(HelpCommand):
    """A command of fmapviz."""

    # Any: the class of contexts is not public.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command.

        Raises:
            RequestError: An option that takes one value has two, or is given with its former name too.
        """
        words = self._renamed(args, silent=ctx.resilient_parsing)
        try:
            rest = super().parse_args(ctx, list(words))  # parsing empties the list
        finally:
            take_effect(ctx)
        if not ctx.resilient_parsing:
            for option, (first, *_, last) in self._repeated(ctx, words):
                raise _refusal(option, first, last, others=[name for each in self.params for name in each.opts])
            if ctx.params.get("quiet") and ctx.params.get("verbose"):  # of a typed one, a file has no opposite
                raise RequestError("--quiet and --verbose exclude each other", hint="pass one of them")
            if not ctx.params.get("quiet"):
                print_settings()
        return rest

    def _renamed(self, args: list[str], *, silent: bool) -> list[str]:
        """Replace former names of options, and report each once."""
        known = {name for each in self.params for name in each.opts}
        renamed = {former: name for former, name in FORMER.items() if name in known and former not in known}
        end = args.index("--") if "--" in args else len(args)
        given = [word.partition("=") for word in args[:end]]
        for former in dict.fromkeys(flag for flag, _, _ in given if flag in renamed and not silent):
            name = renamed[former]
            if any(flag == name for flag, _, _ in given):
                raise RequestError(f"{former} is now {name}, and both are given", hint=f"leave out {former}")
            print_message(f"{former} is now {name}{_NOT_MEANT.get(former, '')}")
        return ["".join((renamed.get(flag, flag), *rest)) for flag, *rest in given] + args[end:]

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


class LookUp(Command):
    """A command whose parameters are texts and flags, which is as fast as `--help`."""

    # Any: as above.
    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return keep_texts(super().get_params(ctx))


def _collecting(option: TyperOption) -> TyperOption:
    """Return a copy of an option that keeps each of its values."""
    option = copy(option)
    option.multiple = True
    return option


def _refusal(option: TyperOption, first: object, last: object, *, others: list[str]) -> RequestError:
    name = max(option.opts, key=len)
    if option.is_flag:
        return RequestError(f"{name} and {option.secondary_opts[0]} exclude each other", hint="pass one of them")
    hint = f"--against {last} compares the two" if name == "--weights" and "--against" in others else "it takes one value"
    return RequestError(f"{name} is given twice: {quote(first)} and {quote(last)}", hint=hint)
