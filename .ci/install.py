"""Install fmapviz into a virtual environment: `python3 install.py .venv [EXTRA [--lowest]]`.

`--lowest` takes the oldest versions that pyproject.toml allows, otherwise `.constraints.txt` says which. uv installs; if it
cannot be had, pip does, in three times the time. Where there is no GPU, PyTorch is its build for CPUs, a tenth of the size,
if PyTorch's own index can be reached.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
BIN = "Scripts" if sys.platform == "win32" else "bin"  # of a virtual environment
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 4
OLDEST_UV = (0, 7)  # the first that knows --torch-backend
PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
NEWEST = ["--constraint", ".constraints.txt"]
LOWEST = ["--resolution", "lowest-direct"]

# uv reads neither pip's files nor its environment variables.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}


class Part(NamedTuple):
    """What is installed, the GB to download and the GB on the disk."""

    name: str
    download: float
    disk: float


# The sums of the wheels' sizes, and of the files in them, for Linux on x86-64.
CUDA = Part("fmapviz and PyTorch with CUDA", 3.1, 5.6)
CPU = Part("fmapviz and PyTorch for CPUs", 0.3, 1.1)
EXTRAS = {"dev": Part("all extras and the tests' tools", 0.4, 1.5), "fuzz": Part("the fuzzer", 0.1, 0.1)}


def main(folder: Path, extra: str | None, versions: list[str]) -> None:
    """Install the package and what it or the extra needs."""
    uv = find_uv()
    python = make_environment(folder, uv)
    uv = uv or find_uv(folder / BIN) or fetch_uv(folder, python)
    parts, options = [EXTRAS[extra]] if extra else [], [*versions]
    if not extra or not any(each for lib in ("lib/python*", "Lib") for each in folder.glob(f"{lib}/site-packages/torch")):
        build, choice = choose_torch(is_uv=uv is not None)
        parts.insert(0, build)
        options += choice
    if uv:
        install_with_uv(uv, folder, parts, extra, options)
    elif versions == LOWEST:
        fail("only uv can install the oldest versions, and it cannot be had")
    else:
        install_with_pip(folder, parts, extra, options)


def find_uv(folder: Path | None = None) -> str | None:
    """Return the path of a uv that is new enough, in a folder or in PATH."""
    path = shutil.which("uv", path=folder)
    version = re.match(r"uv (\d+)\.(\d+)", run([path, "--version"]).stdout) if path else None
    return path if version and (int(version[1]), int(version[2])) >= OLDEST_UV else None


def make_environment(folder: Path, uv: str | None) -> Path:
    """Make the virtual environment unless there is one that works; return its Python."""
    python = folder / BIN / "python"
    if run([python, "-c", ""]).returncode == 0:
        return python
    if uv:
        made = run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
    else:
        made = run([sys.executable, "-m", "venv", "--clear", folder])
    said = made.stdout + made.stderr
    if "ensurepip" in said or "No module named venv" in said:
        fail(
            "this Python cannot make virtual environments: install its venv module (Debian: apt install python3-venv), or uv"
        )
    if made.returncode:
        fail(f"the virtual environment cannot be made: {said.strip()}")
    return python


def fetch_uv(folder: Path, python: Path) -> str | None:
    """Install uv into the environment; return None if that fails."""
    run([python, *PIP, "install", "uv"], env={"PIP_RETRIES": "1", **os.environ})
    return find_uv(folder / BIN)


def choose_torch(*, is_uv: bool) -> tuple[Part, list[str]]:
    """Return which build of PyTorch there will be, and the installer's options for it."""
    if sys.platform != "linux":
        return CPU, []
    if shutil.which("nvidia-smi") or any(Path("/dev").glob("nvidia*")) or "UV_TORCH_BACKEND" in os.environ:
        return CUDA, []
    try:
        urlopen(f"{CPU_INDEX}/torchvision/", timeout=PROBE_SECONDS).close()
    except OSError:
        print(
            "There is no GPU here, but PyTorch's CPU builds cannot be reached: the CUDA build runs on CPUs too.", flush=True
        )
        return CUDA, []
    return CPU, ["--torch-backend", "cpu"] if is_uv else ["--extra-index-url", CPU_INDEX]


def install_with_uv(uv: str, folder: Path, parts: list[Part], extra: str | None, options: list[str]) -> None:
    """Install from uv's cache and the indexes that pip would ask, from the cache alone if there is no network."""
    settings = pip_settings()
    environment = uv_environment(settings)
    no_index = ["--no-index"] if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"} else []
    command = [uv, "pip", "install", "--python", str(folder / BIN / "python"), *options, *no_index]
    requirements = ["--requirements", "pyproject.toml", *(["--extra", extra] if extra else [])]
    failure = ""
    for network in ([], ["--offline"]):
        plan = run([*command, *network, "--dry-run", *requirements], env={"UV_HTTP_RETRIES": "1", **environment})
        is_cached = "Would download" not in plan.stderr
        if plan.returncode == 0 and (is_cached or not network):
            break
        failure = failure or plan.stderr
    else:
        fail_to_fetch(failure)
    if not is_cached:
        announce(parts)
        require_space([(folder, disk(parts)), *cache_elsewhere(uv, folder, parts)])
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    done = subprocess.run([*command, *network, *quiet, "--editable", target(extra)], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        fail("uv could not install the packages, and says why above")


def pip_settings() -> dict[str, str]:
    """Return pip's settings by name, from its files and the environment."""
    listed = base_pip("config", "list")
    found = re.findall(r"^(global|install)\.([a-z-]+)=(.*)$", listed, re.MULTILINE)
    found.sort()  # what is for `pip install` comes after what is for all commands, and counts
    from_environment = {
        name[4:].lower().replace("_", "-"): value for name, value in os.environ.items() if name[:4] == "PIP_"
    }
    return {name: ast.literal_eval(value) for _, name, value in found} | from_environment


def base_pip(*arguments: str) -> str:
    """Return what the pip says that belongs to Python itself: an environment that uv made has none."""
    python = Path(sys.base_prefix, f"bin/python{sys.version_info.major}.{sys.version_info.minor}")
    return run([python, *PIP, *arguments]).stdout


def uv_environment(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment in which uv asks the same indexes as pip, and treats them as equals as pip does."""
    if extra_indexes := settings.get("extra-index-url"):
        settings = {**settings, "extra-index-url": f"{settings.get('index-url') or default_index()} {extra_indexes}"}
    environment = {
        variable: ("," if name == "find-links" else " ").join(settings[name].split())
        for name, variable in UV_VARIABLES.items()
        if settings.get(name)
    }
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **environment, **os.environ}


def default_index() -> str:
    """Return pip's index. An extra index that uv asked first may lack the platform's own wheel of the same version."""
    return next(iter(re.findall(r"--index-url.*?\(default\s+(\S+)\)", base_pip("install", "--help"), re.DOTALL)), "")


def cache_elsewhere(uv: str, folder: Path, parts: list[Part]) -> list[tuple[Path, float]]:
    """Return the demand of uv's cache, whose files the environment shares if both are on one file system."""
    cache = existing(Path(run([uv, "cache", "dir"]).stdout.strip() or folder))
    return [] if cache.stat().st_dev == folder.stat().st_dev else [(cache, disk(parts))]


def install_with_pip(folder: Path, parts: list[Part], extra: str | None, options: list[str]) -> None:
    """Install with pip, which downloads all files before it installs the first."""
    announce(parts)
    require_space([(folder, disk(parts)), (Path(tempfile.gettempdir()), download(parts))])
    command = [str(folder / BIN / "python"), *PIP, "install", "--quiet", *options, "--editable", target(extra)]
    done = run(command, env={"PIP_RETRIES": "2", **os.environ})  # 5 by default, a minute without a network
    if done.returncode:
        fail_to_fetch(done.stderr)


def announce(parts: list[Part]) -> None:
    """Say how much will be downloaded."""
    names = " and ".join(part.name for part in parts)
    print(f"Installing {names}: up to {download(parts):.1f} GB to download, {disk(parts):.1f} GB on the disk.", flush=True)


def require_space(demands: list[tuple[Path, float]]) -> None:
    """Fail if a file system has less space than what is wanted of it, in GB."""
    by_device: dict[int, list[tuple[Path, float]]] = {}
    for path, size in demands:
        by_device.setdefault(existing(path).stat().st_dev, []).append((existing(path), size))
    for together in by_device.values():
        path, need = together[0][0], sum(size for _, size in together)
        available = re.search(r" (\d+) +\d+% ", run(["df", "-Pk", path]).stdout)
        free = int(available[1]) * 1024 / 1e9 if available else need
        if free < need:
            fail(f"the installation needs {need:.1f} GB, and the disk of {path} has {free:.1f} GB free")


def download(parts: list[Part]) -> float:
    """Return the GB to download."""
    return sum(part.download for part in parts)


def disk(parts: list[Part]) -> float:
    """Return the GB on the disk."""
    return sum(part.disk for part in parts)


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def target(extra: str | None) -> str:
    """Return the package with its extra as an installer wants it."""
    return f".[{extra}]" if extra else "."


def fail_to_fetch(said: str) -> NoReturn:
    """Fail with one sentence if the network is missing, otherwise with what the installer said."""
    if re.search("Failed to fetch|network was disabled|connection broken|from versions: none", said):
        causes = re.findall("(?:cause|Caused by): (.*)", said)
        reason = f" ({causes[-1].strip()})" if causes else ""
        fail(f"packages are missing, and the package index cannot be reached{reason}: try again with a network")
    fail(f"the packages cannot be installed: {said.strip()}")


def run(command: Sequence[str | Path], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it said; a missing program is a failure like another."""
    try:
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def fail(sentence: str) -> NoReturn:
    """End with a sentence for the person at the terminal."""
    sys.exit(f"fmapviz: {sentence}.")


if __name__ == "__main__":
    extras = [argument for argument in sys.argv[2:] if argument != "--lowest"]
    main(Path(sys.argv[1]).absolute(), extras[0] if extras else None, LOWEST if "--lowest" in sys.argv else NEWEST)
