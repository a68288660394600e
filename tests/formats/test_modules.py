"""The scripts of the report: modules, joined; the page works without those of features."""

import re
from pathlib import Path
from shutil import copytree

import pytest
from cases import thorough
from step_runs import page_of, write_step_run

import fmapviz.formats.html
from fmapviz.core import registry
from fmapviz.formats.html.modules import join
from fmapviz.formats.html.page import SCRIPTS, render_page
from fmapviz.run.loop import visualize

pytest_plugins = ["browser"]  # its fixtures

FOLDER = Path(fmapviz.formats.html.__file__).parent
KEYS = ["ArrowDown", "]", "]", "c", "w", "w", "o", "v", ".", "p", "p", ",", "Escape", "b", "ArrowRight", "v", "v", "Escape"]


def join_files(entry, **files):
    return join("entry.js", entry, {f"{name.replace('__', '/')}.js": text for name, text in files.items()}.__getitem__)


def run_script(browser, script):
    """Return what a script leaves in `found`."""
    page = browser.new_page()
    try:
        return page.evaluate(f"() => {{ globalThis.found = []; {script}; return globalThis.found; }}")
    finally:
        page.close()


def test_each_module_keeps_its_names_and_runs_once_behind_its_imports(browser):
    script = join_files(
        'import { tell as first } from "./one.js";\nimport { tell, Two } from "./deep/two.js";\n'
        "const modules = 3;\nfound.push(first(), tell(), new Two().name, modules);\n",
        one='// @ts-check\nimport { log } from "./log.js";\n/** @type {\n * string */\nconst name = "one";\nlog(name);\n'
        "const told = {};\n  /** @type {any} */ (told).name = name;\n  /** @type {() => string} */\n"
        "export const tell = () => told.name;\n",
        deep__two='import {\n  log,\n} from "../log.js";\nlet name = "two";\nlog(name);\n'
        "export function tell() {\n  return name;\n}\nexport class Two {\n  name = `class of ${name}`;\n}\n",
        log='found.push("log");\nexport async function wait() {}\nexport const log = (text) => found.push(`log ${text}`);\n',
    )
    assert run_script(browser, script) == ["log", "log one", "log two", "one", "two", "class of two", 3]


@pytest.mark.parametrize(
    ("entry", "files", "message"),
    [
        (
            'import { a } from "./a.js";\n',
            {
                "a": 'import { b } from "./b.js";\nexport const a = b;\n',
                "b": 'import { a } from "./a.js";\nexport const b = a;\n',
            },
            "modules import each other: entry.js > a.js > b.js > a.js",
        ),
        ('import { a } from "./entry.js";\nexport const a = 1;\n', {}, "modules import each other: entry.js > entry.js"),
        ("export let a = 1;\n", {}, 'entry.js cannot be joined: "export let a = 1;"'),
        ("export default 1;\n", {}, "entry.js cannot be joined"),
        ("export const { a } = {};\n", {}, "entry.js cannot be joined"),
        ("const a = 1;\nexport { a };\n", {}, "entry.js cannot be joined"),
        ('import a from "./a.js";\n', {}, "entry.js cannot be joined"),
        ('import * as a from "./a.js";\n', {}, "entry.js cannot be joined"),
        ('import "./a.js";\n', {}, "entry.js cannot be joined"),
        ('import { a } from "a";\n', {}, "entry.js cannot be joined"),
        ('import { "a b" as a } from "./a.js";\n', {}, "entry.js cannot be joined"),
        ('  import { a } from "./a.js";\n', {}, "entry.js cannot be joined"),
        ('const a = await import("./a.js");\n', {}, "entry.js cannot be joined"),
        ("const a = import.meta.url;\n", {}, "entry.js cannot be joined"),
    ],
)
def test_modules_that_cannot_be_joined_are_refused(entry, files, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        join_files(entry, **files)


def test_a_module_that_is_missing_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"a\.js"):
        join("entry.js", 'import { a } from "./a.js";\n', lambda path: (FOLDER / "missing" / path).read_text())


def test_the_page_holds_every_module_and_the_kernel_names_no_feature():
    run = {"title": "", "facts": [], "units": [], "model": None, "statistics": None, "failures": []}
    found = [
        set(re.findall(r'^modules\["(.*)"\] = ', render_page(run, scripts=of).decode(), re.MULTILINE))
        for of in (SCRIPTS, ())
    ]
    package = FOLDER.parents[1]
    assert found[0] == {"formats/html/page.js"} | {path.relative_to(package).as_posix() for path in package.rglob("*.js")}
    assert found[0] - found[1] == {*SCRIPTS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, samples):
    """A run with top images, and one of steps; only read."""
    images = [samples / f"shapes/{name}.jpg" for name in ("circle", "star")]
    views = [view for view in ("top", "maps") if view in registry.views()]
    options = {"views": views, "layers": ["features.2.conv", "features.3.conv"], "to": "html", "workers": 1}
    top = visualize("shapesnet", images, out=tmp_path_factory.mktemp("top"), **options).directory
    return top, write_step_run(tmp_path_factory.mktemp("steps"))


@pytest.mark.thorough
@pytest.mark.parametrize("scripts", [(), *thorough(*((SCRIPTS[:at] + SCRIPTS[at + 1 :],) for at in range(len(SCRIPTS))))])
def test_the_page_works_without_the_scripts_of_features(open_report, runs, tmp_path, scripts):
    for run in runs:
        root = copytree(run, tmp_path / run.name)
        (root / "index.html").write_bytes(render_page(page_of(root), scripts=scripts))
        report = open_report(root)
        for key in KEYS:
            report.press(key)
            assert report.page.locator(".viewport > :is(img, canvas):visible").count() >= 1, key
