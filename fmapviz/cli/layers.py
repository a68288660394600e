"""`fmapviz models` and `fmapviz layers`: list the names of models, and the layers of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmapviz.cli.options import as_typed, read_options, takes_options
from fmapviz.cli.printing import align, print_json, print_line, print_message, results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, ModelArgument, running_option
from fmapviz.config import InputOptions, RunConfig
from fmapviz.core import registry
from fmapviz.errors import RequestError, printable, quote, suggest
from fmapviz.models.load import check_name, model_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fmapviz.data import LayerInfo
    from fmapviz.observe.receptive_field import ReceptiveField

FieldOption = Annotated[
    bool,
    running_option(
        "--receptive-field", help="Add the input pixels that a position depends on: size, stride, first row and column."
    ),
]


@takes_options(only=("layers", "exclude", "types", "size", "fit"))
def list_layers(
    model: ModelArgument,
    *,
    receptive_field: FieldOption = False,
    json: JsonOption = False,
    **options: Any,  # some fields of RunConfig and InputOptions
) -> None:
    """List the layers of MODEL in the order of execution, with shapes. Needs no image and no weights."""
    check_name(model)
    typed = read_options(options)
    prepared = InputOptions(**typed[InputOptions])

    show_status(f"loading {model} ...")
    with importing():
        from fmapviz.observe.layers import find_layers, notice_blocks, notice_left_out
        from fmapviz.run.layer_list import load_and_list, remember_model

    with results_only():
        loaded, rows, outputs = load_and_list(model, preprocessing=prepared, **typed[RunConfig])
        remember_model(model, loaded)
        fields = None
        if receptive_field:
            from fmapviz.features.fields.receptive_field import fields_by_layer

            fields = fields_by_layer(loaded, rows)
    if not options["types"] and all(row.type.startswith("Conv3") for row in rows):
        print_message("notice: the model has no Conv2d layer: these are its Conv3d layers")
    every_layer, choice = find_layers(loaded.module), typed[RunConfig]
    if not options["types"]:
        names = {row.name for row in rows}
        narrowing = {"include": choice.get("layers", ()), "exclude": choice.get("exclude", ())}
        left_out = notice_left_out(every_layer, [layer for layer in every_layer if layer.name in names], **narrowing)
        for notice in filter(None, [left_out, None if choice else notice_blocks(model, every_layer)]):
            print_message(f"notice: {printable(as_typed(notice))}")
    if outputs:
        parts = ", ".join(f"{key} {' x '.join(map(str, shape))}".strip() for key, shape in outputs.items())
        print_message(f"notice: the network returns {printable(parts)}; --output KEY chooses the class scores")
    if json:
        for row in rows:
            added = {} if fields is None else _field_record(fields.get(row.name))
            print_json({"event": "layer", **asdict(row), **added})
        executed = sum(row.index is not None for row in rows)
        counts = {"layers": len(rows), "executed": executed}
        print_json({"event": "summary", "model": model, **counts, "outputs": outputs, "exit_code": 0})
    else:
        print_line("\n".join(_table(rows, fields)))


def list_models(
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Part of a name, or a glob.", show_default=False)] = "",
) -> None:
    """List the names that MODEL takes."""
    if ":" in pattern:  # the names of a source that is slow to import
        show_status(f"listing {pattern} ...")
    names = model_names(pattern)
    if not names:
        source = pattern.removesuffix(":")
        hint = f"fmapviz models '{source}:*'" if source in registry.sources() else suggest(pattern, model_names())
        raise RequestError(f"no model name matches {quote(pattern)}", hint=hint)
    print_line("\n".join(names))


def _table(rows: list[LayerInfo], fields: dict[str, ReceptiveField] | None) -> list[str]:
    """Return the rows as aligned columns."""
    cells: list[tuple[str, ...]] = [("#", "layer", "type", "output", "axes", "parameters", "calls")]
    for row in rows:
        number, shape = ("-", "not executed") if row.shape is None else (str(row.index), " x ".join(map(str, row.shape)))
        name = f"{row.name} = {', '.join(row.aliases)}" if row.aliases else row.name
        cells.append((number, printable(name), row.type, shape, row.layout, f"{row.parameters:,}", str(row.calls)))
    if fields is not None:
        added = [("field", "stride", "start"), *(_field_cells(fields.get(row.name)) for row in rows)]
        cells = [(*row, *more) for row, more in zip(cells, added, strict=True)]
    return align(cells, right={0, 5, 6})


def _field_cells(field: ReceptiveField | None) -> tuple[str, str, str]:
    """Return a field's size, stride and start as text; stride and start are those without gates."""
    if field is None:
        return "", "", ""
    shown = field.ungated or field
    if shown.reason:
        return f"whole picture ({shown.reason})", "", ""
    size = _pair(shown.size, " x ")
    if field.ungated:
        size = f"{'whole picture' if field.is_whole else _pair(field.size, ' x ')}, {size} ungated"
    return size, _pair(shown.stride, " x ") if shown.stride else "irregular", _pair(shown.start, ", ")


def _pair(numbers: Sequence[int], between: str) -> str:
    return between.join(map(str, numbers))


def _field_record(field: ReceptiveField | None) -> dict[str, Any]:
    """Return a field as JSON values; `receptive_field` is None where it is unknown."""
    if field is None or field.reason:
        record: dict[str, Any] = {"receptive_field": None, "reason": field.reason if field else "not executed"}
    else:
        record = {"receptive_field": {"size": field.size, "stride": field.stride, "start": field.start}, "reason": ""}
    if field and field.ungated:
        record["ungated"] = _field_record(field.ungated)["receptive_field"]
    return record
