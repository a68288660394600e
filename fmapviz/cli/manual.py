"""The man page, fmapviz(1), made of the declarations of the commands and of the guide's table of exit codes."""

from __future__ import annotations

import os
import re
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fmapviz.cli.commands import commands
from fmapviz.cli.help import paragraphs_of, sections_of
from fmapviz.cli.pages import codes_in, rows_of_codes
from fmapviz.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fmapviz.cli.help import Row

_ENVIRONMENT = (
    ("FMAPVIZ_CACHE", "Directory of the names that the shell completes; none are kept if it is empty."),
    ("XDG_CACHE_HOME", "Directory of caches, in place of `~/.cache`."),
    ("TORCH_HOME", "Directory of downloaded weights."),
    ("HF_HOME", "Directory of the models of Hugging Face's hub."),
    ("AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...", "Access to remote stores; see `fmapviz guide remote-stores`."),
    ("PAGER", "Program that shows pages of the guide in a terminal; by default `less`."),
    ("NO_COLOR", "If it is set, no colours and no hint at the next step."),
)
_FILES = (
    ("runs/NAME", "A run: `run.json`, and a directory for each image. `--out` and `--name` choose others."),
    ("fmapviz.toml, pyproject.toml", "Settings: options that count as typed, of the nearest directory upwards."),
    ("~/.cache/fmapviz", "Names of layers and classes of models that ran, for completion."),
)
_CODES = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}


# Any: the class of contexts is not public.
def manual(context: Any) -> str:
    """Return the page in the language of man(7).

    Args:
        context: That of the group of commands. The variable `SOURCE_DATE_EPOCH` sets the date of the page.
    """
    group = context.command
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    day = datetime.fromtimestamp(int(seconds), UTC) if seconds.isdecimal() else datetime.now(UTC)
    summary, *described = paragraphs_of(group.help)
    lines = [f'.TH FMAPVIZ 1 {day:%Y-%m-%d} "fmapviz {__version__}" "User Commands"', ".SH NAME"]
    lines += [_text(f"fmapviz - {summary[:1].lower()}{summary[1:].rstrip('.')}"), ".SH SYNOPSIS"]
    lines += [_text("`fmapviz` [OPTIONS] MODEL INPUT..."), ".br", _text("`fmapviz` COMMAND [OPTIONS] ...")]
    lines += [".SH DESCRIPTION", *[*_paragraphs(described)][1:]]
    sections = dict(sections_of(group, context))
    lines += [".SH OPTIONS", *_rows(sections["Options"]), ".SH COMMANDS", *_rows(sections["Commands"])]
    for name, member in commands().items():
        command = group.commands[name]
        with command.context_class(command, info_name=name, parent=context) as inner:
            parts = dict(sections_of(command, inner))
            words = " ".join(["[OPTIONS]", *(label for label, _ in parts.get("Arguments", ()))])
            lines += [
                f".SH {_heading(f'fmapviz {name}')}",
                _text(f"`fmapviz {name}` {words}"),
                *_paragraphs(paragraphs_of(command.help)),
            ]
            for title, rows in parts.items():
                lines += [f".SS {_heading(title)}", *_rows(rows)]
            lines += [f".SS {_heading('Examples')}", *_rows(member.examples)]
    exits = [row.split("|")[2] for row in rows_of_codes() if codes_in(row)[0].isdigit()]
    codes = [", ".join(codes_in(row)) for row in rows_of_codes() if codes_in(row)[0].isdigit()]
    lines += [".SH EXIT STATUS", *_rows(zip(codes, exits, strict=True))]
    lines += [".SH ENVIRONMENT", *_rows(_ENVIRONMENT), ".SH FILES", *_rows(_FILES)]
    lines += [".SH SEE ALSO", _text("`fmapviz guide` lists the pages of the guide, and `fmapviz guide PAGE` shows one.")]
    return "\n".join(lines)


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (".PP", _text(text))


def _rows(rows: Iterable[Row] | Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield tagged paragraphs."""
    for label, text in rows:
        yield from (".TP", _text(f"`{label}`") if "`" not in label else _text(label), _text(text))


def _heading(text: str) -> str:
    return f'"{_escape(text.replace("`", "").replace(chr(34), ""))}"'


def _text(text: str) -> str:
    r"""Return text as lines of input: what is between backticks is bold, links are their labels.

    Example:
        >>> print(_text("see `--size`, [the page](page.md)\n.It's C:\\x"))
        see \fB\-\-size\fR, the page .It\(aqs C:\ex
        >>> print(_text(".TH"))
        \&.TH
    """
    text = re.sub(r"\[([^]]+)\]\([\w./#-]+\)", r"\1", " ".join(text.replace("\xa0", " ").split()))
    parts = [_escape(part) for part in text.split("`")]
    line = "".join(
        f"\\fB{part}\\fR" if number % 2 and number < len(parts) - 1 else part for number, part in enumerate(parts)
    )
    wrapped = textwrap.wrap(line, 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"\\&{part}" if part[0] == "." else part for part in wrapped) or "\\&"


def _escape(text: str) -> str:
    """Escape what is special, also where only some readers of man(7) change it, and all but ASCII."""
    return "".join(_CODES.get(ch, ch if ch.isascii() else f"\\[u{ord(ch):04X}]") for ch in text if ch.isprintable())
