"""The installation by `make demo` and `make test` on machines of each kind, which stand-ins in PATH simulate."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ENVIRONMENT, ROOT
from packaging.requirements import Requirement

FETCHING = "Resolved 55 packages in 1s\nWould download 55 packages\nWould install 55 packages"
CACHED = "Resolved 55 packages in 1s\nWould install 55 packages"
UNREACHABLE = "error: Request failed after 3 retries\n  cause: Failed to fetch: https://index/simple/\n  cause: dns error"

# What uv is asked is kept; it makes an environment whose Python is the one that runs the tests.
UV = f"""
echo "uv $*" >> asked
case "$1 $2" in
  --version*) echo "uv 0.13.9 (somewhere)" ;;
  venv*) for folder; do :; done; mkdir -p "$folder/bin"; ln -sf {sys.executable} "$folder/bin/python" ;;
  cache*) pwd ;;
  pip*)
    env | grep -E "^(UV_|SSL_)" > environment
    case "$*" in
      *--offline*--dry-run*) cat offline >&2; exit "$(cat offline.code)" ;;
      *--dry-run*) cat online >&2; exit "$(cat online.code)" ;;
    esac ;;
esac
"""


class Machine:
    """A fresh clone, less the package, and the commands that its machine has."""

    def __init__(self, place):
        self.clone, self.commands = place / "clone", place / "commands"
        self.commands.mkdir()
        shutil.copytree(ROOT / ".ci", self.clone / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Makefile", "pyproject.toml", ".constraints.txt"):
            shutil.copy(ROOT / name, self.clone)
        self.has("python3", f'exec {sys.executable} "$@"')
        self.has("nvidia-smi", "")
        self.has_free(100)
        self.uv_plans(FETCHING)

    def has(self, name, script):
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def has_free(self, gigabytes):
        blocks = int(gigabytes * 1e9 / 1024)
        self.has("df", f'echo "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/disk 1 1 {blocks} 9% /"')

    def uv_plans(self, online, offline=UNREACHABLE):
        self.has("uv", UV)
        for name, text in (("online", online), ("offline", offline)):
            (self.clone / name).write_text(text + "\n")
            (self.clone / f"{name}.code").write_text("1" if text.startswith("error") else "0")

    def make(self, *targets, code=0, **variables):
        kept = {
            name: value
            for name, value in ENVIRONMENT.items()
            if not name.startswith(("PIP_", "UV_", "MAKE", "MFLAGS", "SSL_"))
        }
        path = f"{self.commands}:/usr/bin:/bin"
        environment = {**kept, "PIP_CONFIG_FILE": os.devnull, "PATH": path, **variables}
        done = subprocess.run(
            ["make", *targets], cwd=self.clone, env=environment, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == (code != 0), said
        assert "Traceback" not in said
        return said

    def refuses(self, *targets, **variables):
        """Return the one sentence with which it fails."""
        lines = self.make(*targets, code=1, **variables).splitlines()
        assert [line for line in lines if line.startswith("make: ***")] == lines[-1:]
        assert not (self.clone / ".venv/.runtime").exists()
        return "\n".join(lines[:-1])

    def asked(self):
        return (self.clone / "asked").read_text().splitlines()

    def installed(self):
        """Return the packages and options of each installation."""
        return [line for line in self.asked() if "--editable" in line]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.thorough
def test_the_runtime_is_installed_after_its_size_is_reported(machine):
    said = machine.make(".venv/.runtime")
    assert said == "Installing fmapviz and PyTorch with CUDA: up to 3.1 GB to download, 5.6 GB on the disk.\n"
    (installation,) = machine.installed()
    assert installation.endswith("--constraint .constraints.txt --quiet --editable .")


@pytest.mark.thorough
def test_the_tests_install_all_extras_and_tools(machine):
    machine.make(".venv/.runtime")
    (machine.clone / ".venv/lib/python3/site-packages/torch").mkdir(parents=True)
    said = machine.make(".venv/.dev")
    assert said == "Installing all extras and the tests' tools: up to 0.4 GB to download, 1.5 GB on the disk.\n"
    assert machine.installed()[1].endswith("--editable .[dev]")


@pytest.mark.thorough
def test_nothing_is_installed_twice(machine):
    machine.make(".venv/.dev")
    asked = machine.asked()
    machine.make(".venv/.dev")
    assert machine.asked() == asked
    os.utime(machine.clone / "pyproject.toml")
    machine.make(".venv/.dev")
    assert len(machine.installed()) == 4


@pytest.mark.thorough
def test_cached_files_are_not_counted_as_downloads(machine):
    machine.uv_plans(CACHED)
    machine.has_free(2)
    assert machine.make(".venv/.runtime") == ""


@pytest.mark.thorough
def test_the_indexes_of_pip_are_used(machine, tmp_path):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://one/simple\nextra-index-url =\n  https://two/simple\n  https://three/simple\n"
        "[install]\nindex-url = https://four/simple\n"
    )
    places = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_CERT": "/certificate", "PIP_FIND_LINKS": "/a /b"}
    machine.make(".venv/.runtime", **places, UV_FIND_LINKS="/mine")
    assert set((machine.clone / "environment").read_text().split("\n")) >= {
        "UV_DEFAULT_INDEX=https://four/simple",
        "UV_INDEX=https://four/simple https://two/simple https://three/simple",
        "UV_INDEX_STRATEGY=unsafe-best-match",
        "UV_FIND_LINKS=/mine",
        "SSL_CERT_FILE=/certificate",
    }
    assert "--no-index" not in machine.installed()[0]


@pytest.mark.thorough
def test_pips_own_index_comes_before_extra_ones(machine):
    machine.make(".venv/.runtime", PIP_EXTRA_INDEX_URL="https://two/simple")
    assert re.search(
        r"^UV_INDEX=https://[\w.]+/simple/? https://two/simple$", (machine.clone / "environment").read_text(), re.M
    )


@pytest.mark.thorough
def test_no_index_of_pip_is_passed_to_uv(machine):
    machine.make(".venv/.runtime", PIP_NO_INDEX="1", PIP_FIND_LINKS="/a /b")
    assert "--no-index" in machine.installed()[0]
    assert "UV_FIND_LINKS=/a,/b\n" in (machine.clone / "environment").read_text()


@pytest.mark.skipif(any(Path("/dev").glob("nvidia*")), reason="needs a machine without a GPU")
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.thorough
def test_the_registry_is_used_without_a_gpu_and_cpu_builds(machine):
    (machine.commands / "nvidia-smi").unlink()
    said = machine.make(".venv/.runtime", https_proxy="http://127.0.0.1:9")
    assert said.splitlines()[0].startswith("There is no GPU here, but PyTorch's CPU builds cannot be reached")
    assert "--torch-backend" not in machine.installed()[0]


@pytest.mark.thorough
@pytest.mark.skipif(any(Path("/dev").glob("nvidia*")), reason="needs a machine without a GPU")
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_the_cpu_builds_are_installed_without_a_gpu(monkeypatch):
    class Index(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/torchvision/" else 404)
            self.end_headers()

        def log_message(self, *_args):
            pass

    monkeypatch.setenv("PATH", "/nowhere")
    installer = runpy.run_path(str(ROOT / ".ci/install.py"))
    choose, cpu = installer["choose_torch"], installer["CPU"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever).start()
        index = f"http://127.0.0.1:{server.server_port}"
        choose.__globals__["CPU_INDEX"] = index
        assert choose(is_uv=True) == (cpu, ["--torch-backend", "cpu"])
        assert choose(is_uv=False) == (cpu, ["--extra-index-url", index])
        server.shutdown()


# --- one sentence each


@pytest.mark.thorough
def test_a_full_disk_is_reported_by_make(machine):
    machine.has_free(2)
    *_, sentence = machine.refuses(".venv/.runtime").splitlines()
    assert sentence == f"fmapviz: the installation needs 5.6 GB, and the disk of {machine.clone}/.venv has 2.0 GB free."
    assert machine.installed() == []


@pytest.mark.thorough
def test_a_missing_network_is_reported_by_make(machine):
    machine.uv_plans(UNREACHABLE)
    assert machine.refuses(".venv/.runtime") == (
        "fmapviz: packages are missing, and the package index cannot be reached (dns error): try again with a network."
    )


@pytest.mark.thorough
def test_the_cache_of_uv_suffices_without_a_network(machine):
    machine.uv_plans(UNREACHABLE, offline=CACHED)
    assert machine.make(".venv/.runtime") == ""
    assert "--offline" in machine.installed()[0]


@pytest.mark.thorough
def test_an_old_uv_without_a_network_is_reported(machine):
    machine.has("uv", UV.replace("uv 0.13.9", "uv 0.6.17"))
    said = machine.refuses(".venv/.runtime", PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0")
    sentence = "fmapviz: packages are missing, and the package index cannot be reached: try again with a network."
    assert said.splitlines()[-1] == sentence
    assert {*machine.asked()} == {"uv --version"}


@pytest.mark.thorough
def test_versions_that_do_not_exist_are_explained_by_uv(machine):
    machine.uv_plans("error: No solution found: there is no torch==99")
    sentence = machine.refuses(".venv/.runtime")
    assert sentence == "fmapviz: the packages cannot be installed: error: No solution found: there is no torch==99."


@pytest.mark.thorough
def test_an_old_python_is_named(machine):
    older = "import sys, platform; sys.version_info, platform.python_version = (3, 10, 13), lambda: '3.10.13'"
    machine.has("python3", f'exec {sys.executable} -c "{older}; exec(sys.argv[1])" "$2"')
    assert machine.refuses("demo") == (
        "fmapviz needs Python 3.11 or newer, and python3 is 3.10.13: name another, as in make demo PYTHON=python3.12."
    )
    assert not (machine.clone / ".venv").exists()
    (machine.commands / "python3.99").symlink_to(sys.executable)
    assert machine.make(".venv/.runtime", "PYTHON=python3.99").startswith("Installing")


def test_a_missing_python_is_named(machine):
    said = machine.refuses("test", "PYTHON=python3.99")
    assert (
        said
        == "fmapviz needs Python 3.11 or newer, and python3.99 is missing: name another, as in make test PYTHON=python3.12."
    )


def test_a_python_without_venv_is_named(machine):
    (machine.commands / "uv").unlink()
    machine.has("python3", f'[ "$2" = venv ] || PYTHONPATH={machine.commands} exec {sys.executable} "$@"')
    (machine.commands / "venv.py").write_text("raise SystemExit('ensurepip is not available')")
    sentence = machine.refuses(".venv/.runtime")
    assert "install its venv module (Debian: apt install python3-venv), or uv" in sentence


# --- the other targets


def test_some_tests_are_run_without_the_checks(machine):
    plan = machine.make("--dry-run", "test", "K=grid and not png")
    assert re.search(r'pytest -n \d+ --dist worksteal .*-m "not zoo" -k "grid and not png"$', plan, re.MULTILINE)
    assert "mypy" not in plan


def test_make_test_all_runs_all_tests(machine):
    everything = machine.make("--dry-run", "test-all").replace("make test-all PYTHON", "make test PYTHON").splitlines()
    *quick, others, cluster, own = everything
    assert quick == machine.make("--dry-run", "test").splitlines()
    assert '-m "not thorough and not zoo"' in quick[-1]
    assert others.endswith('-m "thorough and not ray"')
    assert cluster.endswith('pytest -m "thorough and ray" tests/whole/test_ray.py')
    assert own == cluster.replace("tests/", "--ignore tests/")


@pytest.mark.parametrize(
    "target", ["demo", "test", "test-all", "check", "torture", "fuzz", "all-models", "benchmark", "pictures"]
)
def test_packages_of_the_system_are_not_changed(machine, target):
    assert not re.search(r"\b(apt|apt-get|sudo)\b", machine.make("--dry-run", target))


def test_make_clean_keeps_results(machine):
    for name in ("runs/mine/00.png", ".venv/bin/python", "build/x"):
        (machine.clone / name).parent.mkdir(parents=True, exist_ok=True)
        (machine.clone / name).touch()
    for name in ("fmapviz", "tests", "sample_images"):
        (machine.clone / name).mkdir()
    machine.make("clean")
    assert (machine.clone / "runs/mine/00.png").exists()
    assert not (machine.clone / ".venv").exists()
    assert not (machine.clone / "build").exists()


def test_make_lists_its_targets(machine):
    listed = re.findall(r"^make ([a-z-]+) +\S", machine.make(), re.MULTILINE)
    assert {"demo", "test", "test-all", "test-lowest", "check", "browser", "clean"} < {*listed}


# --- the versions


def requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    return [Requirement(each) for each in listed]


def constraints():
    lines = (ROOT / ".constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def test_every_requirement_has_a_version_for_every_python(machine):
    pinned = {each.name: next(iter(each.specifier)).version for each in constraints()}
    for requirement in requirements():
        if requirement.name != "fmapviz":
            assert requirement.specifier.contains(pinned[requirement.name]), requirement
            assert [each.operator for each in requirement.specifier] == [">="], requirement
    for python in ("3.11", "3.12", "3.13", "3.14"):
        here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
        names = [each.name for each in constraints() if not each.marker or each.marker.evaluate(here)]
        assert {"torch", "numpy", "pytest"} <= {*names}
        assert not [one for one, other in pairwise(sorted(names)) if one == other]


def test_the_constraints_name_no_index():
    text = (ROOT / ".constraints.txt").read_text()
    assert not re.search(r"://|--|@|^[^#]*(?<!=)=(?!=)", re.sub(" ;.*", "", text), re.MULTILINE)
    assert "--hash" not in text


def test_extras_all_and_dev_include_the_others():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    users, developers = (Requirement(extras[name][0]).extras for name in ("all", "dev"))
    assert users == {"heic", "hf", "ray", "remote", "scale", "show", "timm", "video"}
    assert developers == {"all", "browser", "lint", "oracles", "site", "test", "trainers", "ultralytics"}
    assert {*extras} == users | developers | {"dev", "fuzz"}
