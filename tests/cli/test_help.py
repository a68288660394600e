"""What `-h`, `--help`, `fmapviz help` and `fmapviz` without words show."""

import re
import shlex
import subprocess
import sys

import pytest
from cases import thorough
from typer.main import get_command
from typer.testing import CliRunner

from fmapviz.cli.app import app
from fmapviz.cli.commands import commands
from fmapviz.cli.completion import complete
from fmapviz.core.members import load
from fmapviz.errors import RequestError

GROUP = get_command(app)
HELPS = [(), *((name,) for name in commands())]


@pytest.fixture
def shown(monkeypatch, capsys):
    """Return the standard output of a command in a terminal of some columns, which prints nothing else."""

    def show(*words, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert not GROUP.main(words, prog_name="fmapviz", standalone_mode=False)
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return show


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_short_help_has_usage_examples_and_most_used_options_in_30_lines(shown, words):
    text = shown(*words, "-h")
    usage, *lines = text.splitlines()
    assert usage.startswith(" ".join(("Usage: fmapviz", *words)))
    assert len(lines) < 30
    assert max(map(len, lines)) <= 80
    assert f"`fmapviz {' '.join((*words, '--help'))}`".strip("`") in lines[-1]
    member = commands()[words[0] if words else "run"]
    assert all(f"  {command}" in text for command, _ in member.examples[:4])
    assert len(member.examples) >= 2
    options = re.findall(r"^  (-[\w-]+)", text, re.MULTILINE)
    assert set(options) <= {name for each in GROUP.commands[member.name].params for name in each.opts}
    if not words or words == ("run",):
        assert len(member.examples) >= 3
        assert options == ["--weights", "--layers", "--types", "--view", "--to", "--target", "--out", "--size", "--open"]
        assert "maps, inputs" in text  # some values of --view
    if not words:
        assert re.sub(r"\s+", " ", text).count(f"Commands: {', '.join(commands())}") == 1


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_each_text_of_short_help_is_a_phrase_of_its_own(shown, words):
    text = shown(*words, "-h", columns=120)
    listed = text.partition("Most used options\n")[2].partition("\n\n")[0]
    options = re.findall(r"^  (-[\w-]+).*?\s\s(\S.*)$", re.sub(r"\n\s{8,}", "  ", listed), re.MULTILINE)
    known = {name: each for each in GROUP.commands[words[0] if words else "run"].params for name in each.opts}
    for option, does in options:
        assert re.match(r"[A-Z][a-z]", does), does
        assert not re.match(r"(With|Without|If|For|In|Of|And|Only if) \S+$", does), does
        sentence = re.split(r"[.;](?: |\n|$)", known[option].help)[0]
        assert does in {sentence, sentence.partition(": ")[0]} or does.startswith(f"{sentence.partition(': ')[0]}: "), does
    assert len(options) == len(re.findall("^  -", listed, re.MULTILINE))
    assert "--no-config" not in listed
    names = {option for option, _ in options}
    assert "--json" in names or "--json" not in known or names & {"--weights"}  # of the most used ones of a run


@pytest.mark.parametrize("words", [*HELPS, ("help", "run")], ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_stays_readable_in_a_narrow_terminal(shown, words, option):
    """Only commands, which are to be copied, and words are longer than a line."""
    words = words if words[:1] == ("help",) and len(words) > 1 else (*words, option)
    for columns in (20, 50):
        for line in shown(*words, columns=columns).splitlines():
            assert len(line) <= 50 or line.startswith(("Usage:", "  fmapviz ")) or len(line.split()) == 1, line


@pytest.mark.parametrize(
    "words", ["alexnet -h", "-h", "alexnet x.png -h", "alexnet --out r -h", "--out r alexnet -h", "run -h", "run alexnet -h"]
)
def test_short_help_is_shown_at_any_position(shown, words):
    expected = "-h" if words == "-h" else "run -h"
    assert shown(*words.split()) == shown(*expected.split())


def test_help_is_a_command(shown):
    assert shown("help") == shown("--help")
    for name in commands():
        assert shown("help", name) == shown(name, "--help")


def test_all_of_the_help_has_examples_and_all_options(shown):
    for name, member in commands().items():
        text = shown(name, "--help")
        for command, does in member.examples:
            assert re.search(rf"^  {re.escape(command)}\s+{re.escape(does)}$", text, re.MULTILINE), command
        for each in GROUP.commands[name].params:
            assert all(f"  {option}" in text or f", {option}" in text for option in each.opts if option.startswith("-"))
    text = shown("--help")
    assert all(f"\n  {name} " in text for name in commands())
    assert "--view" in text
    assert "fmapviz run --help" in text


def test_a_page_of_the_guide_is_help_too(shown):
    assert shown("help", "weights").startswith("# Weights")
    assert shown("help", "exit", "codes") == shown("guide", "exit-codes")
    assert shown("help", "top", "images") == shown("guide", "top-images")  # top alone is a command


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("lyers", "did you mean `fmapviz help layers`?"),
        ("weigths", "did you mean `fmapviz guide weights`?"),
        ("compare", "`fmapviz diff MODEL INPUT... --against FILE` compares two networks"),
        ("SLURM", "'clusters'"),
        ("zzzz", "`fmapviz help` lists all commands, `fmapviz guide` all pages"),
        ("photo9.jpg", "`fmapviz help` lists all commands, `fmapviz guide` all pages"),
        ("resnet18", "it is a model: `fmapviz layers resnet18` lists its layers"),
        ("run nonsense", "one at a time: `fmapviz help run` shows all options"),
        ("run --view", "one at a time: `fmapviz help run` shows all options, `fmapviz help --view` an option"),
        ("run layers", "one at a time: `fmapviz help run` shows all options"),
        ("looks nonsense", "`fmapviz help` lists all commands, `fmapviz guide` all pages"),
    ],
)
def test_help_of_an_unknown_word_names_similar_ones(shown, word, hint):
    with pytest.raises(RequestError, match=f"no such command or page: '{word}'") as error:
        shown("help", *word.split())
    assert hint in error.value.hint


@pytest.mark.parametrize("name", [name for name in commands() if name != "help"])
def test_help_after_a_command_is_answered_with_its_option_unless_a_file_has_this_name(name, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no file or model is called 'help'") as error:
        shown(name, "help")
    assert error.value.hint == f"`fmapviz {name} --help` shows all options"
    (tmp_path / "help").mkdir()
    with GROUP.make_context("fmapviz", [name, "help"]) as context:
        assert [*context._protected_args, *context.args] == [name, "help"]


def test_without_words_three_examples_and_the_way_to_more_are_shown(shown):
    text = shown()
    assert len(text.splitlines()) < 16
    examples = re.findall(r"^  (fmapviz .*)$", text, re.MULTILINE)
    assert examples[:3] == [command for command, _ in commands()["run"].examples[:3]]
    assert all(f"fmapviz {word}" in text for word in ("-h", "help", "guide"))
    assert "--batch-size" not in text


def test_every_example_is_a_command_that_the_parser_takes():
    for name, member in commands().items():
        assert any(shlex.split(command)[1:2] == [name] for command, _ in member.examples) or name == "run"
        for command, _ in member.examples:
            program, *words = shlex.split(command)
            assert program == "fmapviz"
            with GROUP.make_context("fmapviz", words, resilient_parsing=True) as context:
                called = GROUP.commands[context._protected_args[0]]
            called.make_context(called.name, words[1:] if words[0] == called.name else words, parent=context)


def test_the_first_sentence_of_a_command_names_what_it_does():
    for name, member in commands().items():
        assert member.help.endswith("."), name
        assert load(member.function).__doc__, name


def options_of(name):
    return {option for each in GROUP.commands[name].params for option in (*each.opts, *each.secondary_opts)} | {
        "-h",
        "--help",
    }


def described(name):
    """The texts of a command's help, and what completion says of values; the parser takes its examples."""
    command = GROUP.commands[name]
    yield from (commands()[name].help, command.help)
    for each in command.params:
        yield f"{each.help} {each.show_default}"
        if each.opts[0].startswith("-"):
            yield from (text for _, text in complete(GROUP, [name, each.opts[0]], "")[1])


@pytest.mark.parametrize("name", [name for name in commands() if name not in {"guide", "help"}])  # which take any option
def test_help_and_completion_name_no_option_that_the_command_lacks(name):
    for text in described(name):
        of_commands = re.findall(r"`fmapviz (?:(\w+) )?([^`]*)`", text)
        of_itself = re.sub(r"`fmapviz [^`]*`", "", text)
        for of, words in [(name, of_itself), *of_commands]:
            named = {*re.findall(r"(?<![\w-])(?:--[a-z][\w-]*|-\w\b)", words)}
            assert named <= options_of(of if of in commands() else "run"), text


def test_marks_are_for_terminals():
    assert "\x1b[1m" not in CliRunner().invoke(app, ["-h"]).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["-h"],
        ["models"],
        *thorough(
            ["help", "run"],
            ["run", "--help"],
            ["--help"],
            ["help"],
            ["guide"],
            ["completion", "zsh"],
            ["diff", "-h"],
            ["alexnet", "-h"],
            [],
        ),
    ],
)
def test_help_imports_nothing_slow(words):
    """Typer imports pydantic to convert values, which takes as long as all the rest."""
    program = (
        "import atexit, sys; from fmapviz.cli.app import main\n"
        "slow = {'torch', 'numpy', 'PIL', 'pydantic', 'rich', 'importlib.metadata', 'asyncio'}\n"
        "atexit.register(lambda: print('slow:', *sorted(slow & sys.modules.keys())))\n"
        f"sys.argv = ['fmapviz', *{words!r}]; main()"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert shown.splitlines()[-1].split() == ["slow:"]
