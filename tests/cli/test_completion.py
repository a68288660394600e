"""What TAB completes, in the shells themselves and as their scripts ask for it."""

import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cases import thorough
from waiting import PATIENCE

from fmapviz.cli.commands import commands
from fmapviz.cli.completers import kind_of
from fmapviz.cli.completion import complete, quote_for_bash, split_line
from fmapviz.cli.shells import SCRIPTS, install_script, place_of
from fmapviz.errors import OutputError
from fmapviz.models.known_layers import remember

ROOT = Path(__file__).parents[2]
LAYERS = {
    "stem": "Conv2d", "blocks": "Sequential", "blocks.0": "Block", "blocks.0.conv": "Conv2d", "blocks.1": "Block",
    "blocks.1.conv": "Conv2d", "odd\x1b[31m\nname": "ReLU", "white space": "ReLU", "head": "Linear",
}  # fmt: skip
ODD = ["a", "$(touch ran)", "$x", "a'b", "!x"]
CLASSES = ["star", "square", "tiger cat", "a, b"]
CODE = "def build():\n    raise SystemExit('run at TAB')\n\n\ndef _own():\n    pass\n\n\nclass Net:\n    pass\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with two runs, code and a picture, and a cache that knows two models."""
    monkeypatch.setenv("FMAPVIZ_CACHE", str(tmp_path / ".cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_net.py").write_text(CODE)
    (tmp_path / "photo one.jpg").touch()
    (tmp_path / "pictures").mkdir()
    for name, model in {"first": "resnet18", "second": "unknown"}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps({"request": {"model": model}}))
    settings = {"types": ["Conv2d"], "exclude": ["blocks.1.*"]}
    record = {"request": {"model": "resnet18"}, "settings": settings}
    (tmp_path / "runs" / "first" / "run.json").write_text(json.dumps(record))
    (tmp_path / "runs" / "first" / "shard-000000").mkdir()
    images = [{"name": "star.jpg"}, {"name": "star 2.jpg"}, {"name": "stop.jpg", "failed": "E_DECODE"}]
    (tmp_path / "runs" / "first" / "shard-000000" / "unit.json").write_text(json.dumps({"images": images}))
    (tmp_path / "runs" / "notes").mkdir()
    remember("resnet18", LAYERS, CLASSES)
    remember("timm:odd", {"a[0]": "Block", "a[0].conv": "Conv2d"})
    remember("my_net.py:build", {"own": "Conv2d"})
    remember("my_net.py:own", dict.fromkeys(ODD, "Conv2d"))
    return tmp_path


@pytest.fixture(scope="session")
def group():
    from typer.main import get_command

    from fmapviz.cli.app import app

    return get_command(app)


@pytest.fixture
def values(group):
    """Complete the last word of a line; return the values."""

    def complete_line(line):
        _, *words, word = split_line(f"fmapviz {line}").words
        return [value for value, _ in complete(group, words, word)[1]]

    return complete_line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("alexn", ["alexnet"]),
        ("la", ["layers"]),
        ("--quiet la", ["layers"]),
        ("resnet18 la", []),  # a file may follow, no command
        ("run squeezenet1", ["squeezenet1_0", "squeezenet1_1"]),
        ("layers vgg11", ["vgg11", "vgg11_bn"]),
        ("my", ["my_net.py:build", "my_net.py:Net"]),
        ("pict", ["pictures/"]),
        ("timm", ["timm:"]),
        ("timm:res", []),  # to list them, timm would be imported
        ("resnet18 x.png --view ma", ["maps", "max"]),
        ("resnet18 x.png --view=ma", ["--view=maps", "--view=max"]),
        ("resnet18 x.png --to png,ten", ["png,tensorboard"]),
        ("--to ta", ["tar"]),
        ("--to t", ["tar", "tensorboard", "trust"]),
        ("--to png,te", ["png,tensorboard"]),
        ("resnet18 x.png --fit s", ["squash"]),
        ("resnet18 x.png --bat", ["--batch-size"]),
        ("--ver", ["--version", "--verbose"]),
        ("resnet18 x.png --ver", ["--verbose"]),
        ("--quiet --gen", []),  # only as the first word
        ("--generate ", ["man", "complete-bash", "complete-zsh", "complete-fish", "complete-powershell", "schema", "skill"]),
        ("--generate=s", ["--generate=schema", "--generate=skill"]),
        ("resnet18 --generate ", []),
        ("--install", []),
        ("resnet18 -- --bat", []),
        ("resnet18 x.png --layers ", ["stem", "blocks", "blocks.*", "odd??31m?name", "white space", "head"]),
        ("resnet18 x.png --layers=st", ["--layers=stem"]),
        ("layers resnet18 --layers bl", ["blocks", "blocks.*"]),
        ("layers --layers bl", []),
        ("layers resnet18 --layers blocks.", ["blocks.*", "blocks.0", "blocks.0.*", "blocks.1", "blocks.1.*"]),
        ("resnet18 --exclude stem,s", []),
        ("resnet18 --exclude head,s", ["head,stem"]),
        ("resnet18 --types ", ["Block", "Conv2d", "Linear", "ReLU", "Sequential"]),
        ("resnet18 --types Conv2d,Li", ["Conv2d,Linear"]),
        ("resnet18 --target s", ["star", "square"]),
        ("resnet18 --target star,t", ["star,top1", "star,top3", "star,tiger cat"]),
        ("my_net.py:build --layers ", ["own"]),
        ("vgg11 --layers ", []),
        ("timm:odd --layers ", ["a[0]", "a?0].*"]),
        ("diff resnet18 --layers st", ["stem"]),
        ("verify ", ["runs/first", "runs/second"]),
        ("top ", ["runs/first", "runs/second"]),
        ("top runs/first --layers st", ["stem"]),
        ("top runs/second --layers st", []),
        ("report runs/first runs/s", ["runs/second"]),
        ("extract runs/first --image st", ["star.jpg", "star 2.jpg"]),
        ("extract runs/first/shard-000000 --image st", ["star.jpg", "star 2.jpg"]),
        ("extract runs/second --image ", []),
        ("extract --image ", []),
        ("extract runs/first --layer ", ["input", "stem", "blocks.0.conv"]),
        ("extract runs/second --layer ", ["input"]),
        ("runs re", ["remove"]),
        ("runs remove ", ["first", "second"]),
        ("runs remove first ", ["second"]),
        ("runs --out elsewhere remove ", []),
        ("guide we", ["weights"]),
        ("guide E_DEC", ["E_DECODE"]),
        ("guide 1", []),  # pages and codes of failures are enough to choose from
        ("guide exit ", [str(code) for code in (0, 1, 2, 3, 4, 5, 6, 130, 143, 129)]),
        ("guide exit code 4", ["4"]),
        ("guide weights ", []),
        ("help lay", ["layers", "layers-and-views"]),
        ("help run ", []),
        ("completion f", ["fish"]),
        ("top runs/first --by m", ["max", "mean", "min"]),
        ("no_such_model x.png --layers ", []),
    ],
)
def test_tab_completes(place, values, line, expected):
    assert values(line) == expected


def test_commands_are_listed_before_a_letter_is_typed(values):
    assert values("") == values("--quiet ") == [*commands()]
    assert {"run", "resnet18"} <= {*values("r")}
    assert "resnet18" in values("run ")


@pytest.mark.parametrize(
    "line", ["", "resnet18 ", "resnet18 x.png ", "-q ", "layers ", "--quiet layers resnet18 ", "--generate man "]
)
def test_only_options_that_are_accepted_are_completed(group, values, line):
    root = group.context_class(group, info_name="fmapviz")
    name, _ = group.split_command(root, line.split())
    accepted = [*group.commands[name or "run"].get_params(root), *([] if line else group.get_params(root))]
    assert {*values(f"{line}-")} <= {option for each in accepted for option in (*each.opts, *each.secondary_opts)}


def test_a_description_has_no_backticks(place, fmapviz_at_tab):
    shown = fmapviz_at_tab(_FMAPVIZ_COMPLETE="zsh", _FMAPVIZ_WORD="").stdout
    assert b"fmapviz MODEL INPUT... is short for it" in shown
    assert b"`" not in shown


def test_values_have_descriptions(place, group):
    kind, found = complete(group, ["resnet18", "x.png", "--layers"], "b")
    assert (kind, found) == ("words", [("blocks", "Sequential"), ("blocks.*", "all layers in blocks")])
    assert ("maps", "Output of each layer: one tile") in [
        (value, text[:30]) for value, text in complete(group, ["resnet18", "--view"], "m")[1]
    ]


def test_every_parameter_can_be_completed(place, group):
    """With any word, and without an error; what takes a path says so."""
    seen = set()
    for name, command in group.commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and not (parameter.is_flag or parameter.count):
                kind, _ = complete(group, [name, parameter.opts[0]], "")
                assert kind == kind_of(parameter.metavar or ""), parameter.opts
                seen.add((parameter.opts[0], kind))
    assert {("--out", "directories"), ("--weights", "files"), ("--layers", "words"), ("--columns", "words")} <= seen


def test_an_option_takes_a_value_in_each_command_or_in_none(group):
    """Options may stand before the command, so that the first word must be found without knowing it."""
    takes = {}
    for command in group.commands.values():
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert takes.setdefault(option, parameter.is_flag) == parameter.is_flag, option


@pytest.mark.parametrize("damage", [None, 3, True, "x", [], [1], [None], {}, {"name": None}, ["[a" * 20_000]], ids=str)
def test_damaged_records_of_a_run_complete_what_is_left(place, values, damage):
    run, shard = place / "runs/first/run.json", place / "runs/first/shard-000000/unit.json"
    record, images = json.loads(run.read_text()), [{"name": "star.jpg"}, {"name": "stop.jpg"}]
    for wrong in (damage, *({**record, key: damage} for key in record), *(
        {**record, "settings": {**record["settings"], key: damage}} for key in record["settings"]
    )):  # fmt: skip
        run.write_text(json.dumps(wrong))
        assert values("extract runs/first --layer ")[0] == "input"
        values("top runs/first --layers ")
    for wrong, left in (
        (damage, []),
        ({"images": damage}, []),
        ({"images": [images[0], {"name": damage}, images[1]]}, ["star.jpg", "stop.jpg"]),
    ):
        shard.write_text(json.dumps(wrong))
        assert [name for name in values("extract runs/first --image s") if name != damage] == left


@pytest.mark.parametrize("line", ["a\\", "'", '"a b', "'layer4.", "", "x  ", "--layers=", "$(", "é", "a\\ "])
def test_any_line_is_split(line, values, place):
    typed = split_line(f"fmapviz {line}")
    word = typed.words[-1]
    assert bool(typed.quote) == (line[:1] in {"'", '"'})
    assert not word or word in line.replace("\\", "")
    values(line)


@pytest.mark.parametrize(
    ("line", "breaks", "expected"),
    [
        ("resnet18 --layers bl", ":=", ["blocks", r"blocks.\*"]),
        ("resnet18 --layers 'bl", ":=", ["blocks", "blocks.*"]),
        ("resnet18 --layers=bl", ":=", ["blocks", r"blocks.\*"]),
        ("resnet18 --layers=bl", "", ["--layers=blocks", r"--layers=blocks.\*"]),
        ("my_net.py:bu", ":=", ["build"]),
        ("pict", ":=", ["pictures/"]),
        ("verify run", ":=", ["runs/first", "runs/second", "runs"]),
        ("resnet18 --layers w", ":=", [r"white\ space"]),
        ("resnet18 --layers o", ":=", [r"odd\?\?31m\?name"]),
        ("resnet18 --layers='bl", ":=", ["blocks", "blocks.*"]),
        ('my_net.py:"bu', ":=", ["build"]),
        ("my_net.py:own --layers ", ":=", ["a", r"\$\(touch\ ran\)", r"\$x", r"a\'b", r"\!x"]),
        ('my_net.py:own --layers "', ":=", ["a", r"\$(touch ran)", r"\$x", "a'b", """""'!'"x"""]),
        ('my_net.py:own --layers "$', ":=", [r"\$(touch ran)", r"\$x"]),
        ("my_net.py:own --layers 'a", ":=", ["a", r"a'\''b"]),
    ],
)
def test_bash_gets_what_replaces_its_word(place, fmapviz_at_tab, line, breaks, expected):
    done = fmapviz_at_tab(_FMAPVIZ_COMPLETE="bash", _FMAPVIZ_LINE=f"fmapviz {line}", _FMAPVIZ_BREAKS=breaks)
    _, *found = done.stdout.decode().splitlines()
    assert [value.partition("\t")[0] for value in found] == expected


@pytest.fixture
def fmapviz_at_tab(command_line_alone):
    """Run the command as a script does at TAB."""

    def run(*words, **environment):
        done = command_line_alone(AT_TAB, *words, env=environment, cwd=Path.cwd())
        assert (done.returncode, done.stderr) == (0, b"")
        return done

    return run


AT_TAB = """
import atexit, sys
from fmapviz.__main__ import main
atexit.register(lambda: print("torch was imported") if {"torch", "timm", "transformers"} & sys.modules.keys() else None)
main()
"""


@pytest.mark.parametrize(
    "words", [("resnet18", "--layers"), ("my_net.py:build",), ("timm:resnet18", "--target"), ("--nope",)]
)
def test_nothing_is_imported_or_run_at_tab(place, fmapviz_at_tab, words):
    assert b"torch was imported" not in fmapviz_at_tab(*words, _FMAPVIZ_COMPLETE="zsh", _FMAPVIZ_WORD="").stdout


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "", "FMAPVIZ_CACHE": "/proc/none"},
        {"HOME": "/nowhere"},
        {"_FMAPVIZ_COMPLETE": ""},
        {"_FMAPVIZ_COMPLETE": "complete_bash", "COMP_WORDS": "fmapviz a", "COMP_CWORD": "1"},
        {"_FMAPVIZ_COMPLETE": "bash", "_FMAPVIZ_LINE": ""},
        {"_FMAPVIZ_COMPLETE": "bash"},
    ],
)
def test_a_broken_environment_is_silent(place, fmapviz_at_tab, environment):
    fmapviz_at_tab("resnet18", "--layers", **{"_FMAPVIZ_COMPLETE": "fish", **environment})


# Install


def paths_in(directory):
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "script", "startup"),
    [
        ("bash", ".bash_completions/fmapviz.sh", ".bashrc"),
        ("zsh", ".zfunc/_fmapviz", ".zshrc"),
        ("fish", ".config/fish/completions/fmapviz.fish", None),
    ],
)
def test_a_script_is_installed_once(home, shell, script, startup):
    if startup:
        (home / "dotfiles").write_text("alias ll='ls -l'")
        (home / startup).symlink_to("dotfiles")
    first = install_script(shell)
    assert (home / script).read_text() == SCRIPTS[shell]
    assert first[0] == f"wrote {home / script}"
    assert first[-1].startswith(f"undo: remove {home / script}")
    before = {path: (home / path).read_bytes() for path in paths_in(home)}
    assert install_script(shell)[0] == "nothing to do: it is installed"
    assert {path: (home / path).read_bytes() for path in paths_in(home)} == before
    if startup:
        kept, added = (home / startup).read_text().splitlines()
        assert (kept, added in first[-1], (home / startup).is_symlink()) == ("alias ll='ls -l'", True, True)
    (home / script).write_text("old")
    assert install_script(shell)[0] == f"wrote {home / script}"
    assert (home / script).read_text() == SCRIPTS[shell]


def test_the_profile_of_powershell_loads_its_script(home, monkeypatch):
    (home / ".bin").mkdir()
    (home / ".bin" / "pwsh").write_text(f"#!/bin/sh\necho '{home}/its profile/profile.ps1'\n")
    (home / ".bin" / "pwsh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}/.bin:/bin:/usr/bin")
    install_script("powershell")
    assert (home / "its profile" / "profile.ps1").read_text() == f". '{home}/its profile/fmapviz-completion.ps1'\n"
    assert (home / "its profile" / "fmapviz-completion.ps1").read_text() == SCRIPTS["powershell"]


def test_what_cannot_be_installed_is_an_error(home, monkeypatch):
    (home / ".bash_completions").touch()
    with pytest.raises(OutputError, match=r"cannot write to '.*/.bash_completions/fmapviz.sh'"):
        install_script("bash")
    monkeypatch.setenv("PATH", str(home))
    with pytest.raises(OutputError, match="PowerShell is not installed here, or names no profile"):
        install_script("powershell")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(OutputError, match="no home directory"):
        install_script("zsh")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_an_installed_script_completes(home, place, program, shell, monkeypatch):
    path = shell_or_skip(shell)
    install_script(shell)
    if shell == "fish":
        command = [path, "-c", "complete -C $argv[1]", "fmapviz alexn"]
        environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, stdin=subprocess.DEVNULL)
        assert done.stdout.split() == ["alexnet"]
    else:
        startup = place_of(shell).startup
        text = startup.read_text().replace("; compinit\n", "; compinit -u -D\n")
        options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
        assert type_into([path, *options], text, "fmapviz alexn\t", place, program) == ["fmapviz", "alexnet"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["fish"], 0, ""),
        (["zhs"], 2, "error: no completion for the shell 'zhs'\nhint: there are: bash, zsh, fish, powershell\n"),
        (["nu"], 2, "error: no completion for the shell 'nu'\nhint: there are: bash, zsh, fish, powershell\n"),
    ],
)
def test_the_command_prints_a_script(command_line_alone, words, code, message):
    done = command_line_alone("from fmapviz.__main__ import main; main()", "completion", *words)
    assert (done.returncode, done.stderr.decode()) == (code, message)
    assert done.stdout.decode() == (SCRIPTS["fish"] if code == 0 else "")


@pytest.mark.parametrize("words", [["completion"], ["--show-completion"]])
def test_the_script_of_the_current_shell_is_the_default(place, program, words):
    environment = {**os.environ, "SHELL": "/bin/zsh"}
    done = subprocess.run([program / "fmapviz", *words], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout in SCRIPTS.values()


# In the shells


def shell_or_skip(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no shell {name}")
    return path


@pytest.fixture
def program(place, warm):
    """A directory with the command, for `PATH`."""
    command = place / ".bin" / "fmapviz"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S '{ROOT}/tests/support/warm.py' '{warm}.cli' run -c "
                       f"'from fmapviz.__main__ import main; main()' \"$@\"\n")  # fmt: skip
    command.chmod(0o755)
    return command.parent


def type_into(command, setup, keys, directory, path):
    """Type keys into a shell in a terminal, and let it print the words of the line, each in angle brackets."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(directory)}
    (directory / "setup").write_text(f"{setup}\n")
    terminal, inner = pty.openpty()
    shell = subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, cwd=directory, env=environment, start_new_session=True
    )
    os.close(inner)
    # Ctrl-A puts the command in front of the line after it was completed; the echo of what is typed has no angle bracket.
    typed = f". ./setup; PS1=\r{keys}\x01printf '\\074%s\\076' \r\rprintf '\\074end\\076'\rexit\r"
    os.write(terminal, typed.encode())
    seen = b""
    with suppress(OSError):  # on Linux the end of a terminal is an error
        while b"<end>" not in seen:
            seen += os.read(terminal, 4096)
    os.close(terminal)
    shell.kill()
    shell.wait(PATIENCE)
    return re.findall("<([^>]*)>", seen.decode(errors="replace"))[:-1]


TYPED = [
    ("fmapviz alexn\t", ["alexnet"]),
    ("fmapviz resnet18 --layers st\t", ["resnet18", "--layers", "stem"]),
    ("fmapviz resnet18 --layers 'blocks.0.c\t", ["resnet18", "--layers", "blocks.0.conv"]),
    ("fmapviz my_net.py:b\t", ["my_net.py:build"]),
    ("fmapviz pict\t", ["pictures/"]),
    ("fmapviz resnet18 phot\t", ["resnet18", "photo one.jpg"]),
    ("fmapviz resnet18 --view=gradc\t", ["resnet18", "--view=gradcam"]),
    ("fmapviz my_net.py:own --layers '$(\t", ["my_net.py:own", "--layers", "$(touch ran)"]),
    *thorough(
        ("fmapviz resnet18 --layers w\t", ["resnet18", "--layers", "white space"]),
        ("fmapviz resnet18 --layers o\t", ["resnet18", "--layers", "odd??31m?name"]),
        ("fmapviz vgg11 --layers \t", ["vgg11", "--layers"]),
        ("fmapviz resnet18 --to png,ten\t", ["resnet18", "--to", "png,tensorboard"]),
        ("fmapviz --vers\t", ["--version"]),
    ),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("keys", "words"), TYPED)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_at_tab(place, program, shell, keys, words):
    path = shell_or_skip(shell)
    options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
    prepare = {"bash": "", "zsh": "autoload -Uz compinit; compinit -u -D\n"}[shell]
    assert type_into([path, *options], prepare + SCRIPTS[shell], keys, place, program) == ["fmapviz", *words]


STRANGE = [
    "$x", "a'b", "!x", "a b", "a:b", "a\\b", "~x", "=x", "*", "?", "[a-z]", "{a,b}", "#c", "a;b", "a&b", "<a>",
    "`touch ran`", '"', "'", "é", "日本", "😀", "e\u0301", "-x", "a=b", "%1", "^a", "a\\:b", "\\", "a  b", " a", "a ",
    "(x)", "$'a'", "$(touch ran)",
]  # fmt: skip


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.thorough
def test_any_name_of_a_layer_is_completed_as_it_is(place, program, shell, quote):
    path = shell_or_skip(shell)
    names = [f"n{number:02}{name}" for number, name in enumerate(STRANGE)]
    remember("my_net.py:build", dict.fromkeys(names, "Conv2d"))
    lines = [f"fmapviz my_net.py:build --layers {quote}{name[:3]}" for name in names]
    if shell == "fish":
        script = f"{SCRIPTS['fish']}\nfor line in $argv; complete -C $line; end"
        environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "HOME": str(place), "LC_ALL": "C.UTF-8"}
        command = [path, "--no-config", "-c", script, *lines]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, stdin=subprocess.DEVNULL)
        assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == names
    else:
        setup = f"autoload -Uz compinit; compinit -u -D\n{SCRIPTS['zsh']}\nkeep() {{ printf '%s\\0' \"$4\" >> found; }}"
        keys = "\r".join(f"{line}\t\x01keep " for line in lines)
        type_into([path, "-f", "-i"], f"export LC_ALL=C.UTF-8\n{setup}", keys, place, program)
        assert (place / "found").read_text().split("\0")[:-1] == names[:-1]  # the last one is printed
    assert not (place / "ran").exists()


@pytest.mark.parametrize("quote", ["'", *thorough("", '"')])
def test_zsh_lists_a_run_with_a_strange_name_once(place, program, quote):
    """Among folders too it would be listed again, and the quotation would stay open."""
    names = ["a'b", "!x", "(x)", "a b", "$x", 'x"y']
    for number, name in enumerate(names):
        shutil.copytree(place / "runs/first", place / f"runs/{number}{name}")
    setup = f"autoload -Uz compinit; compinit -u -D\n{SCRIPTS['zsh']}\nkeep() {{ printf '%s\\0' \"$3\" >> found; }}"
    keys = "".join(f"fmapviz verify {quote}runs/{number}\t\x01keep \r" for number in range(len(names)))
    type_into([shell_or_skip("zsh"), "-f", "-i"], setup, f"{keys}fmapviz", place, program)
    found = (place / "found").read_text().split("\0")[:-1]
    assert [name.removesuffix("/") for name in found] == [f"runs/{number}{name}" for number, name in enumerate(names)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('fmapviz my_net.py:own --layers "$(\t', ["my_net.py:own", "--layers", "$(touch ran)"]),
        ('fmapviz my_net.py:own --layers "!\t', ["my_net.py:own", "--layers", "!x"]),
        ("fmapviz my_net.py:own --layers \\$\t\\(\t", ["my_net.py:own", "--layers", "$(touch ran)"]),
        ('fmapviz "od\t', ["odd$(touch ran).py:f"]),
        *thorough(
            ("fmapviz od\t", ["odd$(touch ran).py:f"]),
            ("fmapviz my_net.py:own --layers='$(\t", ["my_net.py:own", "--layers=$(touch ran)"]),
            ("fmapviz runs remove \\$\t", ["runs", "remove", "$(touch ran)"]),
            ("fmapviz verify 'runs/$\t'", ["verify", "runs/$(touch ran)/"]),
        ),
    ],
)
def test_bash_interprets_no_part_of_a_completed_name(place, program, keys, words):
    (place / "odd$(touch ran).py").write_text("def f():\n    pass\n")
    shutil.copytree(place / "runs/first", place / "runs/$(touch ran)")
    command = [shell_or_skip("bash"), "--norc", "--noprofile", "-i"]
    assert type_into(command, SCRIPTS["bash"], keys, place, program) == ["fmapviz", *words]
    assert not (place / "ran").exists()


def common(texts):
    return os.path.commonprefix(texts)  # noqa: RUF071  of texts, not of paths


def in_line(text, quote):
    """Return what readline makes of a text in an open quotation: it removes one of two marks behind each other."""
    return f"{quote}{text.removeprefix(quote)}{quote}" or "''"


@pytest.mark.thorough
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_bash_parses_quoted_names_as_the_names(quote, tmp_path):
    """Each name, and what several have in common at the beginning, which bash inserts."""
    choose = random.Random(0)
    names = ["".join(choose.choices("$`\"'\\!(){}~#*?[]&;|<>= a,^é-:", k=choose.randint(1, 5))) for _ in range(400)]
    expected, words = [], []
    for several in ({*choose.choices(names, k=2), *choose.choices(names, k=choose.randint(0, 2))} for _ in range(400)):
        quoted = quote_for_bash([*several], quote)
        expected += [*several, common([*several])]
        words += [in_line(text, quote) for text in [*quoted, common(quoted)]]
    script = "set -H\n" + "".join(f"printf '%s\\0' {word}\n" for word in words)
    command = [shell_or_skip("bash"), "--norc", "--noprofile", "-i"]
    done = subprocess.run(
        command, input=script.encode(), capture_output=True, cwd=tmp_path, env={"HISTFILE": ""}, check=True
    )
    assert done.stdout.decode().split("\0")[:-1] == expected
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("keys", "words"), [*TYPED, ("fmapviz verify runs/\t", ["verify", "runs/first"])])
def test_fish_completes(place, program, keys, words):
    path = shell_or_skip("fish")
    (place / "setup.fish").write_text(SCRIPTS["fish"])
    line = keys.removesuffix("\t")
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "HOME": str(place)}
    command = [path, "--no-config", "-c", "source setup.fish; complete -C $argv[1]", line]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=place, env=environment, check=True, stdin=subprocess.DEVNULL
    )
    found = [value.partition("\t")[0] for value in done.stdout.splitlines()]
    assert words[-1] in found or (found == [] and keys.endswith(" \t"))
    assert len({value.rstrip("/") for value in found}) == len(found)  # none twice, with a slash and without one
