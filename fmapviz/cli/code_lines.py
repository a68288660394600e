"""Break long lines of code where the code stays the same: between words of a command, within brackets of Python."""

from __future__ import annotations

import io
import re
import tokenize

_INDENT = 4
_WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""")  # of a shell command
_COLUMN = re.compile(r"\S {2,}(?=\S)")  # between the columns of a table


def fit_code(code: str, language: str, width: int) -> list[str]:
    r"""Return lines of code that are no longer than a width, if they can be broken.

    Args:
        code: Without trailing blanks.
        language: `sh` and `console` have commands; those of `console` begin with `$`, and other lines are output. `python`
            is broken within brackets. Others are text.
        width: Characters.

    Example:
        >>> fit_code("fmapviz resnet18 a.png --layers 'layer4.*' --to png", "sh", 38)
        ['fmapviz resnet18 a.png \\', "    --layers 'layer4.*' --to png"]
    """
    if language == "python":
        return _fit_python(code.split("\n"), width)
    fitted = []
    for line in code.split("\n"):
        if len(line) <= width:
            fitted.append(line)
        elif language in {"sh", "bash"} or (language == "console" and line.startswith("$ ")):
            fitted += _fit_command(line, width)
        else:
            fitted += _fit_text(line, width)
    return fitted


def _fit_command(line: str, width: int) -> list[str]:
    """Break a command between words, with a backslash; an option stays beside its value if there is room."""
    indent = " " * (len(line) - len(line.lstrip()))
    groups: list[str] = []
    for word in _WORD.findall(line):
        is_value = groups and groups[-1].startswith("-") and " " not in groups[-1] and not word.startswith("-")
        if is_value and len(groups[-1]) + len(word) + 1 + _INDENT <= width - 2:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines = [indent]
    for group in groups:
        if lines[-1].strip() and len(lines[-1]) + len(group) > width - 2:  # room for the backslash
            lines[-1] += "\\"
            lines.append(indent + " " * _INDENT)
        lines[-1] += f"{group} "
    return [each.rstrip() for each in lines]


def _fit_text(line: str, width: int) -> list[str]:
    """Break text at blanks; what follows stands below its column."""
    columns = [found.end() for found in _COLUMN.finditer(line)]
    indent = next((at for at in reversed(columns) if at <= width // 2), len(line) - len(line.lstrip()) + _INDENT)
    lines = []
    while len(line) > width and (end := line.rfind(" ", indent + 1, width + 1)) > 0:
        lines.append(line[:end].rstrip())
        line = " " * indent + line[end:].lstrip()
    return [*lines, line]


def _fit_python(lines: list[str], width: int) -> list[str]:
    """Break Python behind commas within brackets, and put comments above their lines."""
    fitted = []
    places = _breaks("\n".join(lines))
    for number, line in enumerate(lines, start=1):
        code, places_here = line, places.get(number, [])
        indent = " " * (len(line) - len(line.lstrip()))
        comment = next((at for at, kind in places_here if kind == "#"), None)
        if len(line) > width and comment:
            fitted += _fit_comment(f"{indent}{line[comment:]}", width)
            code = line[:comment].rstrip()
        start, room = 0, width
        while len(code) - start > room:
            ends = [at for at, kind in places_here if kind == "," and start < at <= start + room and at < len(code)]
            if not ends:
                break
            fitted.append((indent + " " * _INDENT if start else "") + code[start : ends[-1]].rstrip())
            start = ends[-1] + (code[ends[-1] :].startswith(" "))
            room = width - len(indent) - _INDENT
        fitted.append((indent + " " * _INDENT if start else "") + code[start:])
    return fitted


def _fit_comment(line: str, width: int) -> list[str]:
    first, *others = _fit_text(line, width)
    indent = " " * (len(line) - len(line.lstrip()))
    return [first, *(f"{indent}# {each.lstrip()}" for each in others)]


def _breaks(code: str) -> dict[int, list[tuple[int, str]]]:
    """Return by line where Python may be broken: behind commas within brackets, `,`, and where comments begin, `#`."""
    places: dict[int, list[tuple[int, str]]] = {}
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            depth += (
                (token.string in {"(", "[", "{"}) - (token.string in {")", "]", "}"}) if token.type == tokenize.OP else 0
            )
            if token.type == tokenize.COMMENT:
                places.setdefault(token.start[0], []).append((token.start[1], "#"))
            elif depth and token.type == tokenize.OP and token.string in {",", "(", "["}:
                places.setdefault(token.end[0], []).append((token.end[1], ","))
    except (tokenize.TokenError, IndentationError):  # part of a program
        return places
    return places
