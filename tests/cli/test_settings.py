"""Options from a settings file equal typed ones, and wrong files are refused with file and line."""

import json
import os
import re
import tempfile
import tomllib
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import typer
from cases import thorough
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperOption
from users import another_user

from fmapviz import visualize
from fmapviz.cli import settings
from fmapviz.cli.app import _usage_error, app
from fmapviz.cli.run import _configure
from fmapviz.cli.settings_file import _check_trusted, _line_of, find_settings
from fmapviz.core.settings_file import settings_file
from fmapviz.errors import FmapvizError, RequestError

STAR = str(Path(__file__).parents[2] / "sample_images/shapes/star.jpg")
GROUP = typer.main.get_command(app)
COMMANDS = [name for name, command in GROUP.commands.items() if "no_config" in {each.name for each in command.params}]
ARGUMENTS = {"runs": 0, "diff": 2}  # those required; of the other commands one
TEXTS = ("7", "0", "a", "0,1", "-x", "", "-1", "0.5", "b:2", "png,raw", "x y", "#é", '"', "\\", "s3://k:pw@b/c")


def options_of(command):
    options = [each for each in GROUP.commands[command].params if isinstance(each, TyperOption)]
    return [each for each in options if each.name != "no_config"]


def key_of(option):
    return max(option.opts, key=len).lstrip("-")


def required(command, *, besides):
    """Return the options that a command requires, typed."""
    options = [each for each in options_of(command) if each.required and each != besides]
    return [word for each in options for word in (each.opts[0], "1")]


def parse(command, *words):
    """Parse the options of a command, behind an argument for each that it requires; return its parameters."""
    words = [*["alexnet"] * ARGUMENTS.get(command, 1), *words]
    parent = GROUP.context_class(GROUP, info_name="fmapviz")
    return GROUP.commands[command].make_context(command, words, parent=parent).params


def outcome(command, *words):
    """Return the parameters of a command, for a run its configuration; or the message of an error."""
    try:
        given = parse(command, *words)
        del given["no_config"]
        params = {name: [*value] or None if isinstance(value, tuple) else value for name, value in given.items()}
        if command != "run":
            return params
        beside = ("model", "inputs", "plan", "quiet", "verbose", "json", "null", "open_report")
        options = {name: value for name, value in params.items() if name not in beside}
        config = _configure("alexnet", ["a.jpg"], options, null=params["null"], open_report=params["open_report"])
        return config, [params[name] for name in beside]
    except (typer.TyperException, FmapvizError) as error:
        error = error if isinstance(error, FmapvizError) else _usage_error(error)
        settings.locate(error)
        return str(error)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory; the settings of the last parsed command are forgotten."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    settings._in_effect.clear()


@pytest.fixture
def write(place):
    def write(text, name="fmapviz.toml"):
        (place / name).write_text(text)

    return write


@pytest.mark.sampled(3)
@pytest.mark.parametrize("texts", [TEXTS[:2], *thorough((TEXTS[2:],))], ids=["some", "others"])
@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_from_a_file_equals_the_typed_one(command, texts, write):
    for option in options_of(command):
        key, flag = key_of(option), max(option.opts, key=len)
        if option.is_flag:
            cases = [(True, [flag]), (False, option.secondary_opts)]
        else:
            cases = [(text, [flag, text]) for text in texts if text or flag != "-k"]
        for value, words in cases:
            write("")
            others = required(command, besides=option)
            typed = outcome(command, *words, *others)
            write(f"[{command}]\n{key} = {json.dumps(value, ensure_ascii=False)}\n")
            expected = f"{typed} (fmapviz.toml:2)" if isinstance(typed, str) else typed
            assert outcome(command, *others) == expected, (key, value)


def test_an_error_about_a_setting_and_a_typed_option_names_the_place_of_the_setting(write):
    write("columns = 2\nfit = 'none'")
    assert outcome("run", "--size", "64") == "fit none keeps the size of each image (fmapviz.toml:2)"
    write("columns = 2\nout = 's3://b/x'")
    assert outcome("run", "--open") == "--open needs a local report"
    write("columns = 2\nopen = true")
    assert outcome("run", "--out", "s3://b/x") == "--open needs a local report (fmapviz.toml:2)"


def test_a_table_of_a_command_beats_general_settings_and_typed_options_beat_both(write):
    write('columns = 2\nto = ["png", "html"]\nlabels = false\n[diff]\ncolumns = 3\nto = []\n')
    assert (parse("run")["columns"], parse("diff")["columns"]) == (2, 3)
    assert not parse("diff")["to"], "an empty array is the default"
    assert parse("run")["labels"] is False
    typed = parse("run", "--columns", "5", "--to", "svg", "--labels")
    assert (typed["columns"], [*typed["to"]], typed["labels"]) == (5, ["svg"], True)
    assert parse("run", "--no-config")["columns"] is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_typed_option_beats_the_file(command, write):
    for option in options_of(command):
        if option.is_flag and not option.secondary_opts:
            continue  # cannot be typed as off
        key, flag = key_of(option), max(option.opts, key=len)
        words = [*([flag] if option.is_flag else [flag, "4"]), *required(command, besides=option)]
        expected = outcome(command, "--no-config", *words)
        write(f"[{command}]\n{key} = {'false' if option.is_flag else '7'}\n")
        assert outcome(command, *words) == expected


def test_a_typed_flag_beats_its_opposite(write, capsys):
    write("quiet = true")
    parse("run", "-v")
    assert (parse("run", "-v")["quiet"], parse("run")["quiet"]) == (False, True)
    write("verbose = true")
    assert (parse("run", "-q")["verbose"], parse("run")["verbose"]) == (False, True)
    capsys.readouterr()
    write("quiet = true\ncolumns = 2")
    parse("run")
    assert capsys.readouterr().err == ""
    parse("run", "-v")
    assert capsys.readouterr().err == "notice: fmapviz.toml sets --columns\n"


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("mean = [0.5, 0.25, 0.5]", "mean", "0.5,0.25,0.5"),
        ("channels = [0, 3, '8-15']", "channels", "0,3,8-15"),
        ("layers = ['layer[1,2].*', 'fc']", "layers", ["layer[1,2].*", "fc"]),
        ("layers = 'layer[1,2].*,fc'", "layers", ["layer[1,2].*,fc"]),
        ("target = [281, 'tabby, tabby cat']", "target", ["281", "tabby, tabby cat"]),
        ("alpha = 1e-1", "alpha", 0.1),
        ("size = [240, 320]", "size", "240x320"),
        ("columns = 0x10", "columns", 16),
        ("run.columns = 3", "columns", 3),
        ("run = {columns = 3}", "columns", 3),
        ("\ufeffcolumns = 3\r\n", "columns", 3),
        ("layers = {size = 3}\ncolumns = 3", "columns", 3),
    ],
)
def test_values_of_each_type_are_read(text, name, value, write):
    write(text)
    assert (parse("run")[name] if not isinstance(value, list) else [*parse("run")[name]]) == value


def test_a_general_setting_skips_commands_whose_option_takes_another_value(write):
    write('out = "x"\nweights = "random"\nforce = true\nview = "gradcam"\nchannels = "top:4"')
    assert parse("runs")["out"] == parse("diff")["out"] == "x"
    assert parse("report")["out"] is None
    assert (parse("top")["weights"], parse("top")["channels"], parse("top")["force"]) == (None, "all", True)
    given = parse("extract", "--image", "0", "--layer", "a")
    assert (given["out"], given["view"], given["force"]) == (None, None, False)
    write('[extract]\nforce = true\nimage = "0"\nlayer = "a"')
    assert (parse("extract")["force"], parse("extract")["image"]) == (True, "0")


def test_the_nearest_file_counts(place, write, monkeypatch):
    (place / "a/b").mkdir(parents=True)
    write("columns = 1")
    write("[tool.fmapviz]\ncolumns = 2", "pyproject.toml")
    write("[tool.fmapviz]\ncolumns = 3", "a/pyproject.toml")
    write("[tool.other]\nfmapviz = 1", "a/b/pyproject.toml")
    assert parse("run")["columns"] == 1
    monkeypatch.chdir("a/b")
    assert parse("run")["columns"] == 3
    (place / "a/pyproject.toml").unlink()
    assert parse("run")["columns"] == 1
    write("", "a/fmapviz.toml")
    assert parse("run")["columns"] is None, "an empty file is one"


def test_paths_in_a_file_start_at_its_folder(place, write, monkeypatch):
    (place / "a").mkdir()
    for name in ("w.pt", "last"):
        (place / name).touch()
    write("")
    for key, written, expected in (
        ("out", "runs", "../runs"),
        ("out", "a/../runs/", "../runs"),
        ("out", "a", "."),
        ("out", "/abs", "/abs"),
        ("out", "~/runs", "~/runs"),
        ("out", "s3://b/x", "s3://b/x"),
        ("weights", "w.pt", "../w.pt"),
        ("weights", "last", "../last"),
        ("weights", "none.pt#ema", "../none.pt#ema"),
        ("weights", "ckpt/epoch_*.pt", "../ckpt/epoch_*.pt"),
        ("weights", "random:3", "random:3"),
        ("weights", "IMAGENET1K_V1", "IMAGENET1K_V1"),
        ("view", "maps,my_view.py:energy", "maps,../my_view.py:energy"),
        ("to", "/abs/f.py:Csv", "/abs/f.py:Csv"),
        ("diff.against", "b.pt", "../b.pt"),
        ("diff.against", "model:nets/my_net.py:build", "model:../nets/my_net.py:build"),
        ("diff.against", "model:hf:org/name", "model:hf:org/name"),
        ("report.out", "page.html", "../page.html"),
        ("name", "my.py", "my.py"),
        ("anchor", "photo.jpg:1,2", "photo.jpg:1,2"),
    ):
        write(f"{key} = {written!r}")
        command, _, name = f"run.{key}".rpartition(".")
        for folder, value in (("a", expected), (".", written)):
            monkeypatch.chdir(place / folder)
            given = parse(command.rpartition(".")[2])[name]
            assert (given if isinstance(given, str) else given[0]) == value, (key, written)


UNKNOWN = {
    "batch_size = 4": "no such option: 'batch_size' (fmapviz.toml:1) | did you mean batch-size?",
    "\n\nbatchsize = 4": "no such option: 'batchsize' (fmapviz.toml:3) | did you mean batch-size?",
    "colums = 4": "no such option: 'colums' (fmapviz.toml:1) | did you mean columns",
    "no-labels = true": "no such option: 'no-labels' (fmapviz.toml:1) | did you mean labels = false?",
    "top = 3": "no such option: 'top' (fmapviz.toml:1) | top is now predictions",
    "overwrite = true": "no such option: 'overwrite' (fmapviz.toml:1) | did you mean force?",
    "untrained = true": "no such option: 'untrained' (fmapviz.toml:1) | did you mean weights = 'random'?",
    "model = 'alexnet'": "no such option: 'model' (fmapviz.toml:1) | models and inputs are typed, and no settings",
    "no-config = true": "no such option: 'no-config' (fmapviz.toml:1) | it is typed, and no setting",
    "[bogus]\nx = 1": "no such option or command: 'bogus' (fmapviz.toml:1) | ",
    "[colums]\nx = 1": "no such option or command: 'colums' (fmapviz.toml:1) | did you mean columns",
    "[rum]\nx = 1": "no such option or command: 'rum' (fmapviz.toml:1) | did you mean the table [run]?",
    "[models]\nx = 1": "models is a command without settings (fmapviz.toml:1) | `fmapviz models --help`",
    "help = true": "no such option: 'help' (fmapviz.toml:1) | it is typed, and no setting",
    "diff = 3": "diff is a command, and no option (fmapviz.toml:1) | the table [diff] has the options of `fmapviz diff`",
    "[tool.fmapviz]\nto = 'png'": "no such option or command: 'tool' (fmapviz.toml:1) | fmapviz.toml has options at its top",
    "[verify]\nsleep = 3": "no such option of verify: 'sleep' (fmapviz.toml:2) | ",
    "[guide]\npage = 3": "guide is a command without settings (fmapviz.toml:1) | ",
    f"{'x' * 9999} = 1": f"no such option: '{'x' * 80}...' (fmapviz.toml:1) | ",
    '"" = 1': "no such option: '' (fmapviz.toml:1) | ",
    '"a\\u001b[31m" = 1': r"no such option: 'a\x1b[31m' (fmapviz.toml:1) | ",
    "[stlye]\nnorm = 'run'": "no such option or command: 'stlye' (fmapviz.toml:1) | ",
    "layers = '''\nbad = 1\n'''\nbad = 1": "no such option: 'bad' (fmapviz.toml:4) | ",
}
WRONG = {
    "columns = true": "columns must be text or a number, not true (fmapviz.toml:1)",
    "labels = 'yes'": "labels must be true or false, not 'yes' (fmapviz.toml:1)",
    "force = 1": "force must be true or false, not 1 (fmapviz.toml:1)",
    "columns = [1]": "columns takes one value, not an array (fmapviz.toml:1)",
    "columns = {a = 1}": "columns must be text or a number, not a table (fmapviz.toml:1)",
    "to = [['png']]": "to must be text or a number, not an array (fmapviz.toml:1)",
    "to = ['png', true]": "to must be text or a number, not true (fmapviz.toml:1)",
    "columns = 2026-01-01": "columns must be text or a number, not 2026-01-01 (fmapviz.toml:1)",
    "to = [\n" + "'a',\n" * 30_000 + "true]": "to must be text or a number, not true (fmapviz.toml:1)",
    '"t\\u006f" = true': "to must be text or a number, not true (fmapviz.toml:1)",
    "[run.columns]\nx = 1": "columns must be text or a number, not a table (fmapviz.toml:1)",
    "[[run]]\nx = 1": "run is a command, and no option (fmapviz.toml:1)",
    'out = "a\\u0000"': "out must be text without zero bytes, not 'a\\x00' (fmapviz.toml:1)",
    "[run]\nmean = '0.5'\ncolumns = [1]": "columns takes one value, not an array (fmapviz.toml:3)",
    f"columns = 0x{'f' * 9999}": "columns must be a number of TOML, not a number of more than 64 bits (fmapviz.toml:1)",
    f"labels = '{'x' * 9999}'": f"labels must be true or false, not '{'x' * 80}...' (fmapviz.toml:1)",
    "columns = 'x'": "invalid value for '--columns': ",
    "\ncolumns = 0": "columns must be at least 1: '0' (fmapviz.toml:2)",
    "norm = 'x'\npadding = 0": "no such norm: 'x' (fmapviz.toml:1)",
    "single-file = true": "a single file needs a report (fmapviz.toml:1)",
    "view = 'similarity'\ncolumns = 2": "similarity needs a position (fmapviz.toml:1)",
    "part = '5/4'": "no such part: '5/4' (fmapviz.toml:1)",
    "engine = 'spark'": "no such engine: 'spark' (fmapviz.toml:1)",
}
NO_TOML = {
    b"columns": "the settings file is not valid TOML: Expected '=' after a key in a key/value pair (fmapviz.toml:1)",
    b"\n\ncolumns = 1\ncolumns = 2": "the settings file is not valid TOML: Cannot overwrite a value (fmapviz.toml:4)",
    b"to = 'p\xff'": "the settings file is not valid TOML: it is not UTF-8 (fmapviz.toml:1)",
    b"\n\nto = 'p\xff'": "the settings file is not valid TOML: it is not UTF-8 (fmapviz.toml:3)",
    "to = 'png'".encode("utf-16"): "the settings file is not valid TOML: it is not UTF-8 (fmapviz.toml:1)",
    b"to = " + b"[" * 9999: "the settings file is not valid TOML: its values are nested too deeply (fmapviz.toml)",
    b"columns = " + b"1" * 9999: "the settings file is not valid TOML: Exceeds the limit",
    b"\0": "the settings file is not valid TOML: Invalid statement (fmapviz.toml:1)",
    b"\n" + b"a." * 9999 + b"a = 1": "a key of the settings file has more than 64 parts (fmapviz.toml:2)",
    b"a = {" + b"'b' . " * 9999 + b"a = 1}": "a key of the settings file has more than 64 parts (fmapviz.toml:1)",
    b"\0" * 2**21: "the settings file is larger than 256 KiB: 'fmapviz.toml'",
}


@pytest.mark.parametrize(("text", "expected"), UNKNOWN.items(), ids=range(len(UNKNOWN)))
def test_an_unknown_key_is_refused_with_its_place_and_what_it_may_mean(text, expected, write):
    write(text)
    with pytest.raises(FmapvizError) as caught:
        parse("run")
    assert f"{caught.value} | {caught.value.hint}".startswith(expected)


def test_the_table_of_a_command_is_checked_in_full_when_it_runs(write):
    write("[verify]\nsize = 3\n[top]\nk = [1]")
    assert not isinstance(outcome("run"), str)
    assert outcome("verify") == "no such option of verify: 'size' (fmapviz.toml:2)"
    assert outcome("top") == "k takes one value, not an array (fmapviz.toml:4)"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("text", "expected"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_value_is_refused_with_its_place(text, expected, write):
    write(text)
    message = outcome("run")
    assert message.startswith(expected)
    assert re.search(r"\(fmapviz\.toml:\d\)$", message)


@pytest.mark.parametrize(("data", "expected"), NO_TOML.items(), ids=range(len(NO_TOML)))
def test_a_file_that_is_no_toml_is_refused(data, expected, place):
    (place / "fmapviz.toml").write_bytes(data)
    message = outcome("run")
    assert message.startswith(expected)
    assert "\n" not in message
    assert not isinstance(outcome("run", "--no-config"), str)


COMMENTS = b"# comment\n" * 30_000
FOREIGN = {
    "large": b"[tool.black]\n" + COMMENTS,
    "names the package": b'[project]\ndependencies = [\n"fmapviz", "fmapviz==1"]\n[tool.black]\n' + COMMENTS,
    "no UTF-8": b"[tool.black]\nname = 'fmapviz \xff'\n",
    "no TOML": b"[tool.black\n# fmapviz",
    "deep": b"[tool]\nx = 'fmapviz'\n" + b"a." * 9999 + b"a = 1",
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_pyproject_without_the_table_is_passed_over(data, place, write):
    write("columns = 3")
    (place / "a").mkdir()
    os.chdir("a")
    (place / "a/pyproject.toml").write_bytes(data)
    assert parse("run")["columns"] == 3
    headings = (b"[tool.fmapviz]\n", b'[tool]\n"fmapviz".to = 1\n', b"tool . fmapviz.to = 1\n", b"tool = {fmapviz = {}}\n")
    for heading in headings:
        (place / "a/pyproject.toml").write_bytes(heading + data)
        assert isinstance(outcome("run"), str), heading


def test_a_table_whose_name_has_escapes_is_read(write):
    write('[tool."fmapvi\\u007a"]\ncolumns = 3', "pyproject.toml")
    assert parse("run")["columns"] == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "words", "is_json"),
    [
        ("json = true", ["--bogus"], True),
        ("[run]\njson = true", ["--columns", "x"], True),
        ("json = true\ncolums = 3", [], True),
        ("json = true\ncolumns = true", [], True),
        ("json = true\n[run]\njson = false", ["--bogus"], False),
        ("[diff]\njson = true", ["--bogus"], False),
        ("json = 1", [], False),
        ("json = true", ["--no-config", "--bogus"], False),
        *thorough(("json = true", ["--columns"], True), ("json = true\njson = true", [], False)),
    ],
)
def test_json_from_a_file_ends_with_a_summary_after_each_error(text, words, is_json, place, command_line_alone):
    (place / "fmapviz.toml").write_text(text)
    done = command_line_alone("from fmapviz.__main__ import main; main()", "shapesnet", STAR, *words, cwd=place)
    assert done.returncode == 2
    printed = done.stdout.splitlines()
    assert [(line["event"], line["exit_code"]) for line in map(json.loads, printed)] == [("summary", 2)] * is_json


def make_folder(path):
    path.mkdir()


def make_loop(path):
    path.symlink_to(path.name)


def make_broken_link(path):
    path.symlink_to("nothing")


def make_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_folder, os.mkfifo, make_loop, make_broken_link, make_device])
def test_a_fmapviz_toml_that_is_no_file_is_refused_and_a_pyproject_passed_over(make, place, write):
    write("columns = 3")
    (place / "a").mkdir()
    os.chdir("a")
    make(place / "a/pyproject.toml")
    assert parse("run")["columns"] == 3
    make(place / "a/fmapviz.toml")
    assert re.fullmatch(r"(cannot read )?the settings file .*'fmapviz.toml'.*", outcome("run"))
    assert not isinstance(outcome("run", "--no-config"), str)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"], ["top", "-h"], ["guide"], ["models", "alexnet"]])
def test_help_guide_and_completion_read_no_file(words, fmapviz, write, place):
    write("broken")
    assert fmapviz(*words, cwd=place).returncode == 0


def test_completion_reads_no_file(write, capsys):
    write("broken")
    command, parent = GROUP.commands["run"], GROUP.context_class(GROUP, info_name="fmapviz")
    context = command.make_context("run", ["--to", "p"], parent=parent, resilient_parsing=True)
    assert context.default_map is None


def test_a_broken_file_ends_a_command_with_one_sentence(fmapviz, write, place):
    write("json = true\ncolumns = 'x'")
    for words in (["shapesnet", STAR], ["shapesnet", STAR, "--plan"]):
        result = fmapviz(*words, cwd=place)
        assert result.returncode == 2
        error, hint = result.stderr.decode().splitlines()
        assert re.fullmatch(r"error: invalid value for '--columns'.* \(fmapviz\.toml:2\)", error)
        assert hint.startswith("hint: ")
        assert json.loads(result.stdout)["exit_code"] == 2, "the setting json counts"
    assert [each.name for each in place.iterdir()] == ["fmapviz.toml"]


def test_a_removed_working_directory_has_no_settings(place, monkeypatch):
    (place / "gone").mkdir()
    monkeypatch.chdir("gone")
    (place / "gone").rmdir()
    assert find_settings() is None
    monkeypatch.chdir(place)


@pytest.fixture
def open_place(monkeypatch):
    """A working directory that other users can enter."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        (place / "a/b").mkdir(parents=True)
        monkeypatch.chdir(place / "a/b")
        (place / "fmapviz.toml").write_text("columns = 3")
        parse("run")  # imports modules that the other user may not read
        yield place
        monkeypatch.chdir("/")
        settings._in_effect.clear()


def test_a_folder_that_cannot_be_searched_does_not_end_the_search(open_place):
    (open_place / "a").chmod(0)
    with another_user():
        assert parse("run")["columns"] == 3
    (open_place / "a").chmod(0o700)


def test_a_file_that_cannot_be_read_is_refused(open_place):
    (open_place / "fmapviz.toml").chmod(0)
    with another_user():
        assert outcome("run") == "cannot read the settings file '../../fmapviz.toml': Permission denied"


def test_a_file_that_others_can_write_is_refused(place, write):
    write("columns = 3")
    for mode, trusted in ((0o644, True), (0o664, True), (0o666, False), (0o602, False)):
        (place / "fmapviz.toml").chmod(mode)
        message = outcome("run")
        assert isinstance(message, str) is not trusted
        if not trusted:
            assert message == "every user can write the settings file: 'fmapviz.toml'"
    (place / "fmapviz.toml").unlink()
    write("[tool.other]\nfmapviz = 1\n", "pyproject.toml")
    (place / "pyproject.toml").chmod(0o666)
    assert not isinstance(outcome("run"), str), "it is not read"


def test_permissions_count_only_where_the_file_system_has_them(place, write, monkeypatch):
    """As on a drive of Windows in WSL, where all modes are 0777 and some folders 0555."""
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) in {place, Path("/")})
    (place / "a/b").mkdir(parents=True)
    monkeypatch.chdir("a/b")
    write("columns = 3", "a/b/fmapviz.toml")
    paths = [place / "a/b/fmapviz.toml", place / "a/b", place]
    for path in paths:
        path.chmod(0o777)
    (place / "a").chmod(0o555)
    assert parse("run")["columns"] == 3
    for path in paths:
        path.chmod(0o1777 if path.is_dir() else 0o666)
        assert outcome("run") == "every user can write the settings file: 'fmapviz.toml'"
        path.chmod(0o777)


@pytest.mark.parametrize("owners", [{"mine"}, {"root"}, {"other"}, {"mine", "other"}, {"root", "other"}])
def test_a_file_or_a_link_of_another_user_is_refused(owners, place):
    users = {"mine": os.geteuid(), "root": 0, "other": 54321}
    expected = nullcontext()
    if "other" in owners:
        expected = pytest.raises(RequestError, match=r"^the settings file belongs to another user")
    with expected as caught:
        _check_trusted({users[each] for each in owners}, place, "fmapviz.toml", is_open=False)
    assert caught is None or caught.value.hint.startswith("--no-config ignores the file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_files_of_root_and_of_the_owner_of_the_working_directory_are_read(open_place):
    with another_user():
        assert parse("run")["columns"] == 3
    os.chown(open_place / "fmapviz.toml", 54321, -1)
    with another_user():
        assert outcome("run") == "the settings file belongs to another user: '../../fmapviz.toml'"
        assert not isinstance(outcome("run", "--no-config"), str)
    os.chown(open_place / "a/b", 54321, -1)
    with another_user():
        assert parse("run")["columns"] == 3
    (open_place / "fmapviz.toml").rename(open_place / "real.toml")
    (open_place / "fmapviz.toml").symlink_to("real.toml")
    os.lchown(open_place / "fmapviz.toml", 54322, -1)
    assert outcome("run") == "the settings file belongs to another user: '../../fmapviz.toml'"


def test_a_run_records_its_settings_and_has_the_same_bytes_as_a_typed_one(fmapviz, place, write):
    options = ("--to", "png", "--layers", "features.7*", "--columns", "3")
    assert fmapviz("shapesnet", STAR, *options, "--out", "typed", cwd=place).returncode == 0
    write('to = ["png"]\nlayers = "features.7*"\ncolumns = 3\nout = "filed"\nsmooth = false\n')
    plan = fmapviz("shapesnet", STAR, "--plan", cwd=place)
    shown = plan.stdout.decode().splitlines()[-1]
    assert shown == "--to png, --layers features.7*, --columns 3, --out filed from fmapviz.toml"
    result = fmapviz("shapesnet", STAR, cwd=place)
    assert result.stderr.startswith(b"notice: fmapviz.toml sets --to, --layers, --columns, --out\n")
    assert result.stderr.count(b"notice: fmapviz.toml") == 1
    for path in (place / "typed").rglob("*"):
        other = place / "filed" / path.relative_to(place / "typed")
        assert path.is_dir() or path.name == "run.json" or path.read_bytes() == other.read_bytes()
    one, other = (json.loads((place / out / "shapesnet/run.json").read_text()) for out in ("typed", "filed"))
    options = {"to": ["png"], "layers": ["features.7*"], "columns": "3", "out": "filed"}
    assert other.pop("config") == {"file": "fmapviz.toml", "options": options}
    assert {**one, "sha256": ""} == {**other, "sha256": ""}
    assert "config" not in one
    quiet = fmapviz("shapesnet", STAR, "-q", "--plan", "--json", cwd=place)
    assert quiet.stderr == b""
    assert json.loads(quiet.stdout.splitlines()[0])["config"] == {"file": "fmapviz.toml", "options": options}


def test_addresses_are_not_recorded(place, write):
    write('out = "s3://key:secret@bucket/x"\ncolumns = 3')
    parse("run")
    assert settings_file.get() == {"file": "fmapviz.toml", "options": {"out": None, "columns": "3"}}


def test_functions_of_python_read_no_file(place, write):
    write("broken")
    summary = visualize("shapesnet", STAR, layers="features.7*", to="png")
    assert summary.directory == Path("runs/shapesnet")
    assert "config" not in json.loads((summary.directory / "run.json").read_text())


@given(
    before=st.lists(st.sampled_from(["# key", 'a = """', "key", '"""', "b = [", "1,", "]", "x.key = 1", ""])),
    heading=st.sampled_from(["", "[t]", "[t.u]", "[key]", "[ 'q r' ]"]),
    line=st.sampled_from(
        ["key = 1", "'key' = [\n1,\n]", "key.a = 1", '"key"="""\nkey = 2"""', "key = {a = 1}", r'"k\u0065y" = "\\"']
    ),
)
def test_the_line_of_a_key_is_that_of_its_statement(before, heading, line):
    start = "\n".join([*before, heading, ""])
    with suppress(tomllib.TOMLDecodeError):
        known, values = tomllib.loads(start), tomllib.loads(f"{start}{line}\nc = 1\n")
        keys = (*re.findall(r"[a-z](?: r)?(?:ey)?", heading), "key")
        inner = known
        for each in keys:
            inner = inner.get(each, {}) if isinstance(inner, dict) else {}
        for each in keys:
            values = values[each]
        if not inner:
            assert _line_of(f"{start}{line}\nc = 1\n", keys) == start.count("\n") + 1


LATE = {  # values that only the run refuses: command, setting, message
    "run": {
        "name = ''": "not a directory name: ''",
        "name = '.x'": "not a directory name: '.x'",
        "weights = ''": "no such weights or file: ''",
        "weights = 'w.pth'": "no such weights file: 'w.pth'",
        "device = ''": "no such device here: ''",
        "target = ''": "no class in the list: ''",
        "target = '0,99'": "no class 99: the network has 6 outputs",
        "output = ''": "the network returns nothing under ''",
        "exclude = '*'": "no layer is left: all are excluded by '*'",
        "layers = ['features.0.conv', 'zz']": "no layer matches 'zz'",
        "types = 'Foo'": "no layer of this type in the model: 'Foo'",
        "mean = '0.5,0.5'": "mean must be",
        "view = 'diff'": "diff compares two networks",
        "view = 'attention'": "no attention is computed in shapesnet, or none that can be seen: 'attention'",
        "channels = 'top:4:change'": "channels are ranked by change where two networks are compared: 'top:4:change'",
        "out = '/dev/null'": "not a directory: '/dev/null'",
        "out = '/proc/x'": "cannot write to '/proc/x/shapesnet'",
    },
    "diff": {
        "against = ''": "the second network or run of the comparison is empty",
        "against = 'model:zz'": "no such model: 'zz'",
        "against = 'dtype:zz'": "no such type: 'zz'",
        "against = 'random'\nnorm = 'run'": "no range over all images of a comparison: 'run'",
        "against = 'random'\nreference = 'first'": "a reference is of a series of checkpoints: 'first'",
        "against = 'random'\nweights = 'e_*.pt'": "a series of checkpoints is compared with one of its own: 'e_*.pt'",
    },
    "runs": {"out = ''": "no path can hold this: ''"},
    "layers": {"exclude = '*'": "no layer is left: all are excluded by '*'"},
}


@pytest.fixture
def message_of(place, monkeypatch, capsys):
    """Return a function that runs a command in this process and returns the message of its error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))

    def message_of(*words):
        with pytest.raises(FmapvizError) as caught:
            app(words, standalone_mode=False)
        settings.locate(caught.value)
        return str(caught.value)

    return message_of


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("command", "text"), [(command, text) for command, texts in LATE.items() for text in texts])
def test_a_value_that_is_refused_after_parsing_is_refused_with_its_place(command, text, write, message_of):
    write(text)
    words = {"run": ["shapesnet", STAR], "diff": ["shapesnet", STAR], "layers": ["shapesnet"], "runs": []}[command]
    line = text.count("\n") + 1
    assert re.fullmatch(rf"{re.escape(LATE[command][text])}.* \(fmapviz\.toml:{line}\)", message_of(command, *words))


def test_a_refused_run_of_other_settings_names_the_place_of_each(write, message_of):
    visualize("shapesnet", STAR, layers="features.0.conv", name="a", to="stats")
    write("columns = 3\nexclude = 'zz'\nsize = 32\nto = 'stats'")
    message = message_of("shapesnet", STAR, "--name", "a", "--layers", "features.0.conv", "--force")
    assert message.startswith("'runs/a' holds a run with other settings")
    assert {*re.findall(r"fmapviz\.toml:(\d)", message)} == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("target = ''", ["shapesnet", ""], "no such file: ''"),
        ("name = 'zz'", ["shapesnet", "zz"], "no such file: 'zz'"),
        ("exclude = 'zz'", ["shapesnet", STAR, "--layers", "zz"], "no layer matches 'zz'"),
        ("columns = 6", ["shapesnet", STAR, "--target", "99"], "no class 99: the network has 6 outputs"),
        ("name = 'no'\nnorm = 'run'", ["shapesnet", STAR, "--weights", "x.pth"], "no such weights file: 'x.pth'"),
    ],
)
def test_an_error_about_something_typed_names_no_place(text, words, message, write, message_of):
    write(text)
    assert message_of(*words) == message


def test_an_error_about_what_should_be_left_out_names_its_place(write):
    write("layers = 'a'\ncolumns = 2")
    parse("run")
    for message, hint, place in (
        ("two things exclude each other", "leave out columns= or force=", " (fmapviz.toml:2)"),
        ("none of the chosen layers computes attention", "these do: b", " (fmapviz.toml:1)"),
        ("unrelated", "pass columns=3", ""),
    ):
        error = RequestError(message, hint=hint)
        settings.locate(error)
        assert str(error) == message + place
