"""The schema of `--json`, and a check of what a command printed against it."""

import json
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

SCHEMA = Path(__file__).parents[2] / "fmapviz" / "guide" / "json.schema.json"

JSON_TYPES = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@cache
def schema():
    return json.loads(SCHEMA.read_bytes())


@cache
def _validators():
    """Return a validator for each kind of line; those of one `event` in one list."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema())
    found = {}
    for each in schema()["oneOf"]:
        kind = schema()["$defs"][each["$ref"].removeprefix("#/$defs/")]
        event = kind["properties"]["event"]["const"]
        found.setdefault(event, []).append(Draft202012Validator({**each, "$defs": schema()["$defs"]}))
    return found


def check_line(line):
    """Check that an object is of exactly one kind; the message names what is wrong with it for each."""
    kinds = _validators().get(line["event"], [])
    problems = {kind.schema["$ref"]: [error.message for error in kind.iter_errors(line)] for kind in kinds}
    fitting = [name for name, found in problems.items() if not found]
    assert len(fitting) == 1, (line, fitting, problems)
    return fitting[0].rpartition("/")[2]


def check_lines(arguments, output, *, code):
    """Check the standard output of a command that had `--json`: valid lines, the last of them the only summary.

    Args:
        arguments: The words of the command.
        output: All of its standard output.
        code: Its exit code; negative if it was killed, and could not end its output.

    Returns:
        The objects; empty if the command had no `--json`.
    """
    words = [str(word) for word in arguments]
    if words[0] == "-c" or "--json" not in words or {"-h", "--help"} & {*words} or code < 0:
        return []
    lines = [json.loads(line, parse_constant=_refuse) for line in output.decode("ascii").splitlines()]
    for line in lines:
        check_line(line)
    if lines:  # empty where standard output was closed or full
        assert [line["event"] == "summary" for line in lines] == [False] * (len(lines) - 1) + [True], lines
        assert lines[-1]["exit_code"] == code, (lines[-1], code)
    return lines


def _refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def types_in(part):
    """Return the types that a part of the schema accepts."""
    if "$ref" in part:
        return types_in(schema()["$defs"][part["$ref"].rpartition("/")[2]])
    if "anyOf" in part:
        return set().union(*map(types_in, part["anyOf"]))
    if "enum" in part or "const" in part:
        return {JSON_TYPES[type(value)] for value in part.get("enum", [part.get("const")])}
    return {part["type"]} if isinstance(part["type"], str) else {*part["type"]}


def types_of(hint):
    """Return the JSON types of a Python type."""
    if get_origin(hint) in {Union, types.UnionType}:
        return set().union(*map(types_of, get_args(hint)))
    if get_origin(hint) is Literal:
        return {JSON_TYPES[type(value)] for value in get_args(hint)}
    if get_origin(hint) is tuple:
        return {"array"}
    return {"object"} if get_origin(hint) is Mapping else {JSON_TYPES[hint]}
