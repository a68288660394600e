"""The README and the guide as programs: their blocks of commands and of Python, and what these must print.

* `sh`: each line is a command; a line that ends in a backslash goes on in the next one.
* `console`: lines after `$ ` are commands, the others are what they print, on standard output and standard error. A line of
  `...` stands for any lines, `...` within a line for any text. Seconds and sizes may differ. Lines of images are sorted:
  they are drawn at once. A command may fail only if an `error: ` is shown.
* `python`: a program. A comment behind a `print` is what it prints; `...` stands for any text. A block whose first line is a
  comment with a file name, `# my_net.py`, is that file, in the working directory of all blocks of all documents.
* `toml`: a file, `# fmapviz.toml`, in the working directory of the next block.
* `bash`: a script.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "fmapviz" / "guide"
SKILL = ROOT / ".agents" / "skills" / "fmapviz" / "SKILL.md"  # for agents
DOCUMENTS = {"README": ROOT / "README.md", "SKILL": SKILL, **{path.stem: path for path in sorted(GUIDE.glob("*.md"))}}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OF_IMAGE = re.compile(r"\S+\.(?:jpg|png): ")
_VARYING = ((r"\b\d+(?:\.\d+)? (s|ms|min|h)\b", r"# \1"), (r"\b\d+(?:\.\d+)? (bytes|[kMGT]i?B)\b", r"# \1"))


@dataclass
class Command:
    """A command, and the lines that it prints; None if they are not shown."""

    line: str
    output: list[str] | None = None


@dataclass
class Block:
    """A fenced block."""

    kind: str
    text: str

    @property
    def commands(self):
        if self.kind == "sh":
            return [Command(line) for line in _joined(self.text) if line.strip() and not line.startswith("#")]
        return _read_session(self.text) if self.kind == "console" else []

    @property
    def file(self):
        """The name of the file that the block is."""
        name = re.match(r"# ([\w-]+\.py)\n", self.text) if self.kind == "python" else None
        return name and name[1]


def settings_before(blocks):
    """Yield each block with the settings files, texts by name, that are shown just before it."""
    shown = {}
    for block in blocks:
        if block.kind == "toml":
            shown[re.match(r"# ([\w-]+\.toml)\n", block.text)[1]] = block.text
        else:
            yield block, shown
            shown = {}


def text_of(document):
    return DOCUMENTS[document].read_text()


def blocks_of(document):
    """List the fenced blocks of a document."""
    return [Block(kind, text) for kind, text in _BLOCK.findall(text_of(document))]


def commands_of(document):
    return [command.line for block in blocks_of(document) for command in block.commands]


def files():
    """Return the files that the documents show, by name."""
    found = {}
    for document in DOCUMENTS:
        for block in blocks_of(document):
            if block.file:
                assert found.setdefault(block.file, block.text) == block.text, f"two files {block.file}"
    return found


def prose_of(document):
    """Return a document without its fenced blocks."""
    return _BLOCK.sub("", text_of(document))


def code_of(document):
    """Return everything of a document that is set as code: blocks, and words between backticks."""
    return "\n".join([*(block.text for block in blocks_of(document)), *re.findall(r"`([^`]+)`", prose_of(document))])


def anchors_of(path):
    """Return the anchors of a Markdown file's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def matches(output, expected):
    """Compare what a command printed with the lines that a document shows."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in map(_settled, expected)
    )
    shown = []
    for of_images, lines in groupby(map(_settled, output.splitlines()), key=lambda line: bool(_OF_IMAGE.match(line))):
        shown += sorted(lines, key=lambda line: line if of_images else "")
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in shown)) is not None


def expected_prints(program):
    """Return the comment behind each `print` of a program, by the line of the call."""
    comments = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(program).readline)
        if token.type == tokenize.COMMENT
    }
    calls = (
        node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    )
    return {call.lineno: comments[call.end_lineno] for call in calls if call.end_lineno in comments}


def is_printed(comment, printed):
    return OutputChecker().check_output(f"{comment}\n", printed, ELLIPSIS | NORMALIZE_WHITESPACE)


def imported_by(program):
    """Return the top-level packages that a program imports."""
    nodes = [*ast.walk(ast.parse(program))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def _joined(text):
    return text.replace("\\\n", "").splitlines()


def _read_session(text):
    commands = []
    for line in _joined(text):
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ "), []))
        else:
            assert commands, f"a block of kind console begins with a command: {line}"
            commands[-1].output.append(line)
    return commands


def _settled(line):
    """Replace what differs from one run to the next."""
    for pattern, replacement in _VARYING:
        line = re.sub(pattern, replacement, line)
    return line.rstrip()
