"""The repository beside the code: documents, workflows, forms and hooks."""

import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import package
import pytest
from extras import yaml

import fmapviz

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
CHANGELOG = (GITHUB / "CHANGELOG.md").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").iterdir())}
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").iterdir()) if path.name != "config.yml"]
DOCUMENTS = [*sorted(GITHUB.rglob("*.md")), *ROOT.glob("tests/*.md")]  # the others: test_documentation.py
SETTINGS = [*sorted(GITHUB.rglob("*.yml")), ROOT / "pyproject.toml", ROOT / ".pre-commit-config.yaml"]
TEXTS = [*DOCUMENTS, ROOT / "README.md", *sorted(ROOT.glob("fmapviz/guide/*.*")), *ROOT.glob(".agents/**/*.md"), *SETTINGS]


def load(path):
    return yaml.safe_load(path.read_text())


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
def test_the_top_level_holds_only_known_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    visible = {path.partition("/")[0] for path in listed if path and not path.startswith(".")}
    assert visible == {"Makefile", "README.md", "fmapviz", "pyproject.toml", "sample_images", "tests"}


# --- the changelog


def test_the_newest_version_of_the_changelog_is_that_of_the_package():
    assert re.search(r"^## \[(\d[^]]*)]", CHANGELOG, flags=re.MULTILINE)[1] == fmapviz.__version__


def test_the_changelog_keeps_its_format():
    assert re.findall(r"^## .*", CHANGELOG, flags=re.MULTILINE)[0] == "## [Unreleased]"
    versions = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)] - (\S+)$", CHANGELOG, flags=re.MULTILINE)
    assert len(versions) == CHANGELOG.count("\n## ") - 1
    ordered = [(*map(int, numbers), date.fromisoformat(day)) for *numbers, day in versions]
    assert ordered == sorted(ordered, reverse=True)
    sections = set(re.findall(r"^### (.*)", CHANGELOG, flags=re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


# --- documents


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_documents_exist(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_name_no_machine(path):
    text = path.read_text()
    assert not re.findall(r"(?<![\w.~])/(?:home|root|Users|work|opt)/\S+", text)
    assert not re.findall(r"(?i)\b(?:pypi|pythonhosted|npmjs|anaconda)\.\w+|\b(?:deb|registry|mirrors?)\.[\w.]+\.\w+", text)


def test_make_targets_in_documents_exist():
    for path in DOCUMENTS:
        assert set(re.findall(r"`make ([a-z-]+)", path.read_text())) <= TARGETS, path


# --- workflows


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_the_targets_of_the_makefile(name):
    commands = [step["run"] for step in steps_of(load(WORKFLOWS[name])) if "run" in step]
    targets = {command.split()[1] for command in commands if command.startswith("make ")}
    assert targets
    assert targets <= TARGETS
    known = r"(make|git diff|python -m pip install|python -m pytest|fmapviz) [^\n]+"  # Windows has no make
    assert all(re.fullmatch(known, command) for command in commands)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_has_few_rights_and_little_time(name):
    workflow = load(WORKFLOWS[name])
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"] == "${{ github.workflow }}-${{ github.ref }}"
    assert all(0 < job["timeout-minutes"] <= 180 for job in workflow["jobs"].values())
    more = {job: settings["permissions"] for job, settings in workflow["jobs"].items() if "permissions" in settings}
    assert more == ({"publish": {"id-token": "write"}} if name == "publish" else {})


def test_actions_are_named_by_their_commits():
    steps = [step for path in WORKFLOWS.values() for step in steps_of(load(path))]
    steps += load(GITHUB / "actions/setup/action.yml")["runs"]["steps"]
    used = {step["uses"] for step in steps if "uses" in step} - {"./.github/actions/setup"}
    assert used
    assert all(re.fullmatch(r"(actions|pypa)/[a-z-]+@[0-9a-f]{40}", name) for name in used), used
    lines = [line for path in GITHUB.rglob("*.yml") for line in path.read_text().splitlines() if "uses: " in line]
    assert all("# v" in line for line in lines if "uses: ./" not in line)


def test_workflows_cover_all_checks():
    targets = {name: {step.get("run") for step in steps_of(load(path))} for name, path in WORKFLOWS.items()}
    assert "make check" in targets["check"]
    assert {"make browser", "make test", "make test-all"} <= targets["tests"]
    assert {"make test-lowest", "make constraints", "make test", "make package"} <= targets["versions"]
    assert "make torture" in targets["torture"]
    assert "make all-models" in targets["all-models"]


def test_a_tag_publishes_what_was_built_and_used_without_a_secret():
    workflow = load(WORKFLOWS["publish"])
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on` is a boolean in YAML 1.1
    package, publish = workflow["jobs"]["package"], workflow["jobs"]["publish"]
    assert {"run": "make package", "env": {"TAG": "${{ github.ref_name }}"}} in package["steps"]
    assert (publish["needs"], publish["environment"]) == ("package", "pypi")
    assert not any("run" in step for step in publish["steps"])
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    stored, taken = package["steps"][-1]["with"], publish["steps"][0]["with"]
    assert (stored["name"], stored["path"]) == (taken["name"], taken["path"]) == ("dist", "dist/")
    assert "secrets." not in WORKFLOWS["publish"].read_text()


@pytest.mark.parametrize(("tag", "version", "message"), [
    ("v9.8.7", "0.2.0", "the tag v9.8.7 is not that of the version 0.2.0, v0.2.0"),
    ("0.2.0", "0.2.0", "the tag 0.2.0 is not that"),
    ("v9.8.7", "9.8.7", "the changelog has no section of the version 9.8.7"),
])  # fmt: skip
def test_a_tag_without_its_version_or_changes_is_refused(monkeypatch, tag, version, message):
    monkeypatch.setenv("TAG", tag)
    with pytest.raises(SystemExit, match=message):
        package.check_tag(version)


def test_the_tag_of_the_version_is_accepted(monkeypatch):
    monkeypatch.setenv("TAG", f"v{fmapviz.__version__}")
    package.check_tag(fmapviz.__version__)


def test_archives_hold_what_git_knows_and_nothing_else():
    package.check_names(Path("a.whl"), {"a"}, {"a"})
    with pytest.raises(SystemExit, match=r"a\.whl lacks b, c"):
        package.check_names(Path("a.whl"), {"a"}, {"a", "c", "b"})
    with pytest.raises(SystemExit, match=r"a\.whl holds what git does not know: \.env"):
        package.check_names(Path("a.whl"), {"a", ".env"}, {"a"})


def test_workflows_test_each_supported_python():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    tested = load(WORKFLOWS["tests"])["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={tested[0]}"
    assert tested == [f"3.{minor}" for minor in range(11, 11 + len(tested))]
    assert promised == tested[: len(promised)]


# --- forms and hooks


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_required_fields(path):
    form = load(path)
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "title", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(names) == len({*names})
    assert all(field["type"] in {"input", "textarea", "dropdown", "checkboxes"} for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_hooks_need_no_network():
    (source,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert source["repo"] == "local"
    for hook in source["hooks"]:
        assert hook["language"] == "pygrep" or (hook["language"], hook["entry"][:10]) == ("system", ".venv/bin/")
