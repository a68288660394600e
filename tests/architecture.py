"""Measure how the package is built: `make check` runs the static part, `python tests/architecture.py --run` all of it.

parameters of a function, import cycles, modules without a test, calls of pathlib that fail for some names, class names that
several modules define, words that the glossary replaces, lines of code; with --run also which modules one image passes, and
how deep the stack is above a pixel.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tempfile
import threading
import tokenize
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fmapviz"
MOST_PARAMETERS = 12
MOST_SHARED_NAMES = 3  # of a contract and its implementation, for example
_CODE = re.compile(r"`([^`]+)`")
FACADE = {"visualize", "run", "top_images", "top", "cam", "trust"}  # the command line's and Python's own signatures


def main() -> int:
    found = {
        "functions with too many parameters": long_signatures(),
        "import cycles": cycles(),
        "modules of which nothing says where they are tested": untested(),
        "calls of pathlib that fail for some names, before Python 3.14; use os.path.isfile or the like": failing_questions(),
        f"class names of several modules, above {MOST_SHARED_NAMES}": shared_names()[MOST_SHARED_NAMES:],
        "words that the glossary of .github/CONTRIBUTING.md replaces": replaced_words(),
    }
    for what, where in found.items():
        print(f"{what}: {len(where)}")
        for line in where:
            print(f"  {line}")
    print(f"lines of code, without docstrings, comments and blank lines: {sum(map(code_lines, modules())):,}")
    print(f"modules: {len(modules())}")
    if "--run" in sys.argv:
        passed, depth = one_image()
        print(f"modules that one image passes: {len(passed)}\n  {', '.join(passed)}")
        print(f"own frames above a pixel: {depth}")
    return int(any(found.values()))


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def long_signatures() -> list[str]:
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and node.name not in FACADE:
                count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
                if count > MOST_PARAMETERS:
                    found.append(f"{name_of(path)}.{node.name}: {count}")
    return found


def imports() -> dict[str, set[str]]:
    """What each module imports of ours, also late and for types only."""
    known = {name_of(path) for path in modules()}
    graph: dict[str, set[str]] = {}
    for path in modules():
        edges = graph.setdefault(name_of(path), set())
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    edges.add(target if target in known else node.module)
            elif isinstance(node, ast.Import):
                edges |= {alias.name for alias in node.names}
        edges &= known - {"fmapviz", name_of(path)}
    return graph


def cycles() -> list[str]:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def failing_questions() -> list[str]:
    """Return calls of `Path.exists` and the like, which raise for names that are too long; an `entry` is of `os.scandir`."""
    return [
        f"{name_of(path)}, line {node.lineno}: {ast.unparse(node)}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords)
        if node.func.attr in {"exists", "is_file", "is_dir", "is_symlink"} and ast.unparse(node.func.value) != "entry"
    ]


def shared_names() -> list[str]:
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def untested() -> list[str]:
    """Return modules without a test file, which no test file imports and the table of tests/README.md does not name."""
    tests = ROOT / "tests"
    imported: set[str] = set()
    for path in tests.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
    rows = [row.split("|") for row in (tests / "README.md").read_text().splitlines() if row.startswith("| `")]
    named = [
        pattern
        for _, modules, *where in rows
        if where and any((tests / each).is_file() for each in _CODE.findall(where[0]))
        for pattern in _CODE.findall(modules)
    ]
    return [
        str(module)
        for path in modules()
        if path.name != "__init__.py" and name_of(path) not in imported
        for module in [path.relative_to(PACKAGE)]
        if not (tests / module.with_name(f"test_{module.name}")).exists()
        if not any(module.match(pattern) and len(module.parts) == pattern.count("/") + 1 for pattern in named)
    ]


def replaced_words() -> list[str]:
    """Return lines of the package and its documents with a word in the glossary's column "not", also as part of a name."""
    glossary = ROOT / ".github" / "CONTRIBUTING.md"
    rest, table = glossary.read_text().split("| not | but |\n|---|---|\n")
    rows, _, after = table.partition("\n\n")
    words = [word for row in rows.splitlines() for word in _CODE.findall(row.split("|")[1])]
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(words)})s?(?![a-z])", re.IGNORECASE)
    texts = {
        path: path.read_text("utf-8")
        for path in (ROOT / "README.md", *sorted(PACKAGE.rglob("*")))
        if path.suffix in {".py", ".md", ".js", ".ts", ".css", ".jinja"}
    }
    texts[glossary] = rest + after
    return [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path, text in texts.items()
        for line in text.splitlines()
        if pattern.search(line)
    ]


def code_lines(path: Path) -> int:
    source = path.read_text("utf-8")
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            documentation |= set(range(text.lineno, (text.end_lineno or 0) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documentation)


def one_image() -> tuple[list[str], int]:
    """Draw one image; return the modules whose functions ran from its listing to its rename, and the deepest own stack.

    The scheduler's threads are watched: an image is listed in one, then read, drawn and written in another. What is loaded
    before and made of all images after that runs in the main thread; another one counts the inputs for the remaining time.
    The network's own modules do not count.
    """
    from fmapviz import visualize

    seen: dict[str, None] = {}
    deepest = 0
    prefix, network = str(PACKAGE), str(PACKAGE / "models" / "shapesnet")
    scheduler = str(PACKAGE / "run" / "pipeline" / "scheduler.py")

    def profile(frame, event, _argument):
        nonlocal deepest
        if event != "call" or not frame.f_code.co_filename.startswith(prefix):
            return
        if frame.f_code.co_filename.startswith(network):
            return
        depth, above, first = 0, frame, frame
        while above is not None:
            if above.f_code.co_filename.startswith(prefix) and not above.f_code.co_filename.startswith(network):
                depth += above.f_code.co_name != "<lambda>"
                first = above
            above = above.f_back
        if first.f_code.co_filename != scheduler:
            return
        seen.setdefault(frame.f_code.co_filename)
        deepest = max(deepest, depth)

    image = str(ROOT / "sample_images" / "shapes" / "star.jpg")
    other = str(ROOT / "sample_images" / "shapes" / "ring.jpg")
    options = {"to": "png", "workers": 1}
    with tempfile.TemporaryDirectory() as out:
        visualize("shapesnet", other, out=out, **options)
        threading.setprofile(profile)
        try:
            visualize("shapesnet", [image], out=out, **options)
        finally:
            threading.setprofile(None)
    return sorted(name_of(Path(path)) for path in seen), deepest


if __name__ == "__main__":
    sys.exit(main())
