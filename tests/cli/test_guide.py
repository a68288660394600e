"""`fmapviz guide`: as Markdown in a pipe, laid out and in a pager in a terminal."""

import os
import pty
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from warm import start_process

from fmapviz.cli.guide import PAGES

ROOT = Path(__file__).parents[2]
COLUMNS = 100


def source(page):
    return (ROOT / "fmapviz" / "guide" / f"{page}.md").read_text()


def test_pages_of_the_guide_equal_its_files():
    assert sorted(PAGES) == sorted(path.stem for path in (ROOT / "fmapviz" / "guide").glob("*.md"))
    others = {path.name for path in (ROOT / "fmapviz" / "guide").iterdir() if path.suffix != ".md"}
    assert others == {"json.schema.json"}


def test_each_page_begins_with_a_title_and_a_summary():
    for page in PAGES:
        title, paragraph, *_ = source(page).split("\n\n")
        assert re.fullmatch(r"# \S.*", title), page
        assert paragraph[0].isalpha(), page
        assert paragraph.endswith((".", "?")), page


def test_all_pages_are_listed_with_a_sentence(fmapviz):
    result = fmapviz("guide")
    lines = result.stdout.decode().splitlines()
    assert (result.returncode, [line.split()[0] for line in lines]) == (0, [*PAGES])
    assert all(re.search(r" {2}\S.*[.?]$", line) for line in lines)
    assert result.stderr.decode() == "`fmapviz guide PAGE` shows one of them\n"


def test_a_page_in_a_pipe_is_its_markdown(fmapviz):
    result = fmapviz("guide", "weights")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode() == source("weights")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("wieghts", "did you mean 'weights'? `fmapviz guide` lists all pages"),
        ("SLURM", "'clusters'"),
        ("and", "`fmapviz guide` lists all pages"),  # two pages have it in their name
        (" ", f"hint: there are: {', '.join(PAGES)}"),
        ("zzzz", f"hint: there are: {', '.join(PAGES)}"),
    ],
)
def test_an_unknown_page_is_exit_2_with_the_nearest_or_a_list(fmapviz, word, near):
    result = fmapviz("guide", word)
    assert (result.returncode, result.stdout) == (2, b"")
    error, hint = result.stderr.decode().splitlines()
    assert error == f"error: no such page: '{word}'"
    assert near in hint


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (["Weights"], "weights"),
        (["weights.md"], "weights"),
        (["exit", "codes"], "exit-codes"),
        (["views"], "layers-and-views"),
        (["formats"], "own-formats"),
        (["own", "views"], "own-views"),
    ],
)
def test_a_page_is_found_by_related_words(fmapviz, words, page):
    assert fmapviz("guide", *words).stdout.decode() == source(page)


@pytest.fixture
def terminal(warm, tmp_path):
    """Run the command in a terminal of 80 columns; return its output, with `\\n` as the end of lines."""

    def show(*args, **environment):
        given = {"TERM": "xterm-256color", "COLUMNS": "80", **environment}
        inherited = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "PAGER", "LESS"}}
        ours, theirs = pty.openpty()
        process = start_process(warm, args, environment={**inherited, **given}, directory=tmp_path, streams=[theirs] * 3)
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        os.close(ours)
        assert process.wait() == 0, shown
        return shown.decode().replace("\r\n", "\n")

    return show


@pytest.fixture
def pager(tmp_path):
    """A pager that prints its input."""
    program = "import os, sys\nprint('LESS', os.environ['LESS'])\nprint(sys.stdin.read(), end='END')"
    path = tmp_path / "pager.py"
    path.write_text(program)
    return f"{sys.executable} {path}"


def test_a_terminal_shows_a_formatted_page_in_the_pager(terminal, pager):
    shown = terminal("guide", "weights", PAGER=pager)
    assert shown.startswith("LESS FRX\n")
    assert shown.endswith("\nEND")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert plain != shown
    assert "# Weights" not in plain
    assert re.search(r"^[ ┃]+Weights[ ┃]*$", plain, re.MULTILINE)
    assert "`" not in plain
    assert "fmapviz guide security" in " ".join(plain.split())
    assert ".md" not in plain
    blocks = re.findall(r"```\w+\n(.*?)```", source("weights"), re.DOTALL)
    code = {line for block in blocks for line in block.splitlines()}
    lines = [line.removeprefix(" ").rstrip() for line in plain.splitlines()]
    assert code <= set(lines)  # whole, to be copied
    assert max(len(line) for line in lines if line not in code) <= 80
    assert terminal("guide", "weights", PAGER=pager, LESS="R").startswith("LESS R\n")


def test_the_list_is_wrapped_in_a_terminal(terminal):
    lines = terminal("guide").splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[0].isalpha()] == [*PAGES]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("environment", [{"PAGER": ""}, {"PAGER": "no-such-program"}, {"TERM": "dumb"}])
def test_a_page_is_printed_without_a_pager(terminal, environment):
    shown = terminal("guide", "weights", **environment)
    assert "Weights" in shown
    assert "# Weights" not in shown


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_less_exits_if_the_page_fits(terminal):
    shown = terminal("guide", "weights", LINES="999")
    assert "\x1b[1" in shown
    assert "ESC" not in shown
    assert "security" in shown


@pytest.mark.thorough
def test_no_color_means_no_colour(terminal):
    coloured, plain = (terminal("guide", "weights", PAGER="", **more) for more in ({}, {"NO_COLOR": "1"}))
    colours = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;)")
    assert colours.search(coloured)
    assert not colours.search(plain)


def test_ctrl_c_is_left_to_the_pager(terminal, tmp_path):
    program = f"import os, sys\nos.kill(os.getppid(), {int(signal.SIGINT)})\nprint(sys.stdin.read()[:0] + 'shown')"
    (tmp_path / "pager.py").write_text(program)
    assert terminal("guide", "weights", PAGER=f"{sys.executable} {tmp_path}/pager.py") == "shown\n"
