"""Options and commands of other tools are refused with hints."""

import re

import pytest
import typer

from fmapviz.cli.app import _hint_for_option, app
from fmapviz.cli.commands import commands
from fmapviz.cli.run import _unknown_word
from fmapviz.cli.synonyms import COMMANDS as WORDS
from fmapviz.cli.synonyms import FLAGS, meant_command
from fmapviz.core.synonyms import OPTIONS


def options_of(command):
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)}


@pytest.fixture
def context():
    group = typer.main.get_command(app)
    parent = group.context_class(group, info_name="fmapviz")
    return lambda name: group.context_class(group.commands[name], info_name=name, parent=parent)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("-o", "did you mean --out?"),
        ("--output-dir", "did you mean --out?"),
        ("--class", "did you mean --target?"),
        ("--format", "did you mean --to?"),
        ("--checkpoint", "did you mean --weights?"),
        ("--pretrained", "published weights are the default; --weights random takes others"),
        ("--cpu", "did you mean --device cpu?"),
        ("--gpu", "did you mean --device cuda?"),
        ("--method", "did you mean --view?"),
        ("--dry-run", "did you mean --plan?"),
        ("--resume", "a run continues by itself, finished images are skipped; --weights FILE loads a checkpoint"),
        ("--overwrite", "did you mean --force?"),
        ("--num_workers", "did you mean --workers?"),
        ("--imgsz", "did you mean --size?"),
        ("--cmap", "did you mean --colormap?"),
        ("--gradcam", "did you mean --view gradcam?"),
        ("--html", "did you mean --to html?"),
        ("--topk", "--channels top:16 draws the strongest channels; --predictions counts predicted classes"),
        ("--model", "the model comes first, then the images, both without the name of an option"),
        ("--recursive", "folders are searched with all that is in them"),
        ("--no-lables", "did you mean --no-labels, --labels?"),  # a spelling
        ("--receptive-field", "--receptive-field is an option of `fmapviz layers`"),
        ("--config", "fmapviz.toml in the working directory, or above it, holds options; --no-config ignores it"),
        ("--zzz", None),
    ],
)
def test_an_option_of_another_tool_has_a_hint(context, option, meant):
    assert _hint_for_option(option, context("run")) == meant


@pytest.mark.parametrize("option", ["--classes", "--class-names", "--labels-file", "--label-map", "--id2label"])
def test_a_list_of_class_names_is_no_target(context, option):
    hint = _hint_for_option(option, context("run"))
    assert hint.startswith("names of classes are read from the weights")
    assert "the page models of the guide" in hint
    assert hint.endswith("; --target chooses a class")


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [
        ("layers", "--cpu", None),
        ("diff", "--view", "--view is an option of `fmapviz run`, `fmapviz extract`"),
        ("diff", "--npz", None),
        ("diff", "--synset", None),
        ("layers", "--resize", "did you mean --size?"),
        ("runs", "-o", "did you mean --out?"),
        ("top", "--overwrite", "did you mean --force?"),
        ("top", "--limit", "did you mean -k?"),
        ("diff", "--baseline", "did you mean --against?"),
        ("report", "--show", "did you mean --open?"),
    ],
)
def test_a_command_names_only_options_that_it_has(context, command, option, meant):
    assert _hint_for_option(option, context(command)) == meant


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", [name for name in commands() if name != "run"])
def test_hints_of_a_command_name_only_its_options(context, command):
    here = context(command)
    known = options_of(here.command) | {"--help"}
    for option in {f"--{word}" for word in (*OPTIONS, *FLAGS)} | options_of(context("run").command) - known:
        hint = _hint_for_option(option, here)
        own = re.sub("`.*?`", "", (hint or "").removeprefix(f"{option} is an option of "))
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", own)) <= known, (option, hint)


@pytest.mark.parametrize("command", ["run", "layers"])
def test_an_option_of_the_group_is_for_the_first_word(context, command):
    """A hint does not offer the word that was refused, and says where a similar one is accepted."""
    without = "without a model" if command == "run" else "without a command"
    here = context(command)
    for option in options_of(here.parent.command) - {"--help", "-h"}:
        assert _hint_for_option(option, here) == f"`fmapviz {option}`, {without}"
    for option in ("--versoin", "--VERSION", "--about"):
        assert _hint_for_option(option, here) == f"did you mean `fmapviz --version`, {without}?"
    assert _hint_for_option("--generat", here) == f"did you mean `fmapviz --generate`, {without}?"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--generate"], "--generate man|schema|skill|complete-SHELL; see `fmapviz --help`"),
        (["--generate="], "there are: man, complete-bash"),
        (["shapesnet", "--layers"], "--layers GLOB,...; see `fmapviz run --help`"),
        (["layers", "--types"], "--types NAME,...; see `fmapviz layers --help`"),
    ],
)
def test_an_option_without_its_value_says_what_it_takes(words, hint, fmapviz, tmp_path):
    done = fmapviz(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert hint in done.stderr.decode()


def test_each_word_of_the_tables_has_a_hint(context):
    run = context("run")
    known = options_of(run.command)
    for word in (*OPTIONS, *FLAGS):
        if f"--{word}" not in known and f"-{word}" not in known and (word in OPTIONS or {*FLAGS[word]} & known):
            hint = _hint_for_option(f"--{word}", run)
            assert hint, word
            assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", hint)) <= known | {"--help"}, (word, hint)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("summary", "`fmapviz layers MODEL`"),
        ("info", "`fmapviz layers MODEL`"),
        ("list", "`fmapviz runs`"),
        ("open", "`fmapviz report RUN --open`"),
        ("show", "`fmapviz report RUN --open`"),
        ("rm", "`fmapviz runs remove RUN`"),
        ("clean", "`fmapviz runs remove RUN`"),
        ("compare", "`fmapviz diff MODEL"),
        ("gradcam", "--view gradcam`"),
        ("docs", "`fmapviz guide`"),
        ("dinov2", "hf:facebook/dinov2-small"),
        ("unet", "my_net.py:build"),
        ("alexnt", "'alexnet'"),
    ],
)
def test_a_command_or_network_of_another_tool_has_a_hint(word, meant):
    for alone in (True, False):
        assert meant in _unknown_word(word, alone=alone).hint


def test_commands_of_the_hints_exist_and_are_no_synonyms():
    assert not WORDS.keys() & {*commands()}
    for word in WORDS:
        for command in re.findall(r"`fmapviz ([a-z]+)", meant_command(word)):
            assert command in commands(), word
