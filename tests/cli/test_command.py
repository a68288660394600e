"""Options of one value refuse two, in each command; former names of options are accepted."""

import pytest
import typer
from typer.core import TyperOption

from fmapviz.cli.app import app
from fmapviz.cli.former import FORMER
from fmapviz.errors import RequestError

GROUP = typer.main.get_command(app)
OPTIONS = [
    (name, each) for name, command in GROUP.commands.items() for each in command.params if isinstance(each, TyperOption)
]
SINGLE = [(name, option) for name, option in OPTIONS if not (option.is_flag or option.multiple)]
SEVERAL = [(name, option) for name, option in OPTIONS if option.multiple]
SWITCHES = [(name, option) for name, option in OPTIONS if option.secondary_opts]
ARGUMENTS = {"models": 0, "runs": 0, "guide": 0, "diff": 2}  # those required; of the other commands one


def takes(command, option):
    return any(option in each.opts for each in command.params)


def parse(name, *words):
    """Parse the words of a command, with a value for each thing that it requires."""
    command, parent = GROUP.commands[name], GROUP.context_class(GROUP, info_name="fmapviz")
    required = [each.opts[0] for each in command.params if isinstance(each, TyperOption) and each.required]
    given = [word for option in required if option not in words for word in (option, "1")]
    return command.make_context(name, [*["alexnet"] * ARGUMENTS.get(name, 1), *given, *words], parent=parent).params


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("command", "option"), SINGLE, ids=lambda each: getattr(each, "name", each))
def test_two_values_of_an_option_that_takes_one_are_refused(command, option):
    name = max(option.opts, key=len)
    with pytest.raises(RequestError, match=f"^{name} is given twice: '1' and '2'"):
        parse(command, name, "1", name, "2")
    assert parse(command, name, "1", name, "1") == parse(command, name, "1"), "nothing is lost"


@pytest.mark.parametrize(("command", "option"), SEVERAL, ids=lambda each: getattr(each, "name", each))
def test_an_option_that_takes_several_values_keeps_them(command, option):
    name = max(option.opts, key=len)
    assert list(parse(command, name, "a", name, "b")[option.name]) == ["a", "b"]  # a tuple in older versions of click


@pytest.mark.parametrize(("command", "option"), SWITCHES, ids=lambda each: getattr(each, "name", each))
def test_a_switch_is_not_both_on_and_off(command, option):
    on, off = option.opts[0], option.secondary_opts[0]
    with pytest.raises(RequestError, match=f"^{on} and {off} exclude each other"):
        parse(command, on, off)
    assert parse(command, off, off)[option.name] is False


def test_a_second_network_is_refused_with_a_hint_to_against():
    with pytest.raises(RequestError) as caught:
        parse("diff", "--weights", "one.pt", "--weights", "two.pt")
    assert caught.value.hint == "--against two.pt compares the two"


def test_words_after_two_dashes_are_no_options():
    assert list(parse("run", "--to", "png", "--", "--name", "a", "--name", "b")["inputs"]) == ["--name", "a", "--name", "b"]


RENAMED = [(name, former) for name, command in GROUP.commands.items() for former in FORMER if takes(command, FORMER[former])]


@pytest.mark.parametrize(("command", "former"), RENAMED)
@pytest.mark.parametrize("joined", [True, False])
def test_a_former_name_is_accepted_and_reported_and_refused_beside_the_new_one(command, former, joined, capsys):
    name = FORMER[former]
    words = [f"{former}=3"] if joined else [former, "3"]
    assert parse(command, *words, *words) == parse(command, name, "3")
    also = "; --weights random:SEED seeds random weights" if former == "--seed" else ""
    assert capsys.readouterr() == ("", f"{former} is now {name}{also}\n")
    with pytest.raises(RequestError, match=f"^{former} is now {name}, and both are given") as caught:
        parse(command, *words, name, "3")
    assert caught.value.hint == f"leave out {former}"


def test_a_former_name_is_not_in_help_and_is_no_file(capsys):
    assert {command for command, _ in RENAMED} == {"run"}
    assert list(parse("run", "--", "--predictions", "--seed")["inputs"]) == ["--predictions", "--seed"]
    assert capsys.readouterr() == ("", "")
    assert not any(takes(command, former) for command in GROUP.commands.values() for former in FORMER)
