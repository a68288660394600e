"""`fmapviz guide`: as Markdown in a pipe, laid out and in a pager in a terminal."""

import os
import pty
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from cases import thorough
from typer.core import TyperOption
from typer.main import get_command
from warm import start_process

from fmapviz.cli.app import app
from fmapviz.cli.pages import PAGES
from fmapviz.errors import RequestError

ROOT = Path(__file__).parents[2]
COLUMNS = 100


def source(page):
    return (ROOT / "fmapviz" / "guide" / f"{page}.md").read_text()


@pytest.fixture
def group(capsys):
    """Return the output of a command of this process."""

    def show(*words):
        get_command(app).main(words, prog_name="fmapviz", standalone_mode=False)
        return capsys.readouterr().out

    return show


def test_pages_of_the_guide_equal_its_files():
    assert sorted(PAGES) == sorted(path.stem for path in (ROOT / "fmapviz" / "guide").glob("*.md"))
    others = {path.name for path in (ROOT / "fmapviz" / "guide").iterdir() if path.is_file() and path.suffix != ".md"}
    assert others == {"json.schema.json", "llms.txt"}


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
    assert result.stderr.decode().splitlines() == [
        "`fmapviz guide PAGE` shows one of them",
        "`sample_images` is a folder of the repository; without it, take any photo",
    ]


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_ctrl_c_is_left_to_the_pager(terminal, tmp_path):
    program = f"import os, sys\nos.kill(os.getppid(), {int(signal.SIGINT)})\nprint(sys.stdin.read()[:0] + 'shown')"
    (tmp_path / "pager.py").write_text(program)
    assert terminal("guide", "weights", PAGER=f"{sys.executable} {tmp_path}/pager.py") == "shown\n"


def rows_of(page):
    return [line for line in source(page).splitlines() if re.match(r"\| [`\d]", line)]


CODES = [code for row in rows_of("exit-codes") for code in re.findall(r"\bE_\w+|\b\d+\b", row.split("|")[1])]


@pytest.mark.parametrize("command", ["guide", *thorough("help")])
def test_the_row_of_each_code_is_printed(command, group):
    assert len(CODES) > 25
    for code in CODES:
        spellings = [code, f"exit {code}", f"exit code {code}", f"exit-{code}"] if code.isdigit() else [code, code.lower()]
        for words in spellings:
            text = group(command, *words.split())
            (row,) = [line for line in text.splitlines() if re.match(r"\| [`\d]", line)]
            assert row in source("exit-codes").splitlines()
            assert re.search(rf"\b{code}\b", row.split("|")[1])
            assert text.splitlines()[-3].startswith("| ")
            assert text[0].isalpha()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("E_DECOED", "no such code: 'E_DECOED'", "did you mean E_DECODE"),
        ("e_", "no such code: 'e_'", "E_"),
        ("exit 9", "no such exit code: '9'", "there are: 0, 1, 2, 3, 4, 5, 6, 130"),
        ("255", "no such exit code: '255'", "there are: 0"),
        ("--layres", "no such option: '--layres'", "did you mean --layers"),
        ("--zzzz", "no such option: '--zzzz'", "`fmapviz run --help` lists all options of a run"),
    ],
)
@pytest.mark.parametrize("command", ["guide", "help"])
def test_an_unknown_code_or_option_is_refused_with_near_ones(command, words, error, hint, group):
    with pytest.raises(RequestError, match=re.escape(error)) as refused:
        group(command, *words.split())
    assert hint in refused.value.hint


@pytest.mark.thorough
def test_each_option_is_found_with_its_help_its_commands_and_pages(group):
    of = {}
    for name, command in get_command(app).commands.items():
        for each in command.params:
            for option in (*each.opts, *each.secondary_opts) if isinstance(each, TyperOption) else ():
                of.setdefault(option, set()).add(f"fmapviz {name}")
    for option, names in of.items():
        text = group("guide", option)
        assert {name for line in re.findall(r"^fmapviz .*", text, re.MULTILINE) for name in line.split(", ")} == names
        assert re.search(rf"^  .*{re.escape(option)}\b", text, re.MULTILINE)
    assert "See fmapviz guide looks" in group("guide", "--columns")
    assert "maps" in group("help", "--view")


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
@pytest.mark.parametrize("code", ["E_WORKER", *thorough("6")])
def test_the_pager_begins_at_the_row_of_a_code(terminal, pager, code):
    shown = terminal("guide", code, PAGER=pager)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    options, number = lines[0].split(" +")
    assert options == "LESS FRX"
    assert re.match(rf"\W*{code}\b", lines[int(number)])
