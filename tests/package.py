"""Build the package, install it into empty environments outside the clone, and use it there: `make package`.

The wheel and the source distribution are left in `dist`. They hold the files that git knows and no others, and the source
distribution makes the same wheel and runs tests. The wheel is then used with the versions of `.constraints.txt` and with
the oldest ones that pyproject.toml allows, without extras. There, Python may neither read the clone nor write into the
environment. With the variable TAG, as of a release, the tag is compared with the version and the changelog.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from chromium import find_browser
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
VERSIONS = {"the newest versions": [], "the lowest versions": ["--lowest"]}

# Imported when Python starts, by a .pth file: a folder without write permission is no hindrance to root.
GUARD = """
import os, sys
CLONE, ENVIRONMENT = {clone!r}, {environment!r}
CHANGES = {{"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}}
def guard(event, arguments):
    if event != "open" and event not in CHANGES and event not in {{"os.listdir", "os.scandir"}}:
        return
    if not isinstance(arguments[0], (str, bytes)):
        return
    path = os.path.abspath(os.fsdecode(arguments[0])) + os.sep
    writes = event in CHANGES or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if path.startswith(CLONE + os.sep) or writes and path.startswith(ENVIRONMENT + os.sep):
        raise PermissionError(13, "guarded by tests/package.py", path)
sys.addaudithook(guard)
"""
PHOTO = """
import numpy, PIL.Image
y, x = numpy.mgrid[:240, :320]
PIL.Image.fromarray(numpy.stack([x % 256, y, (x ^ y) % 256], -1).astype("uint8")).save("photo.jpg")
"""
IMPORTS = """
import importlib, pkgutil, fmapviz
for module in pkgutil.walk_packages(fmapviz.__path__, "fmapviz."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        print(error.name)
"""
READER = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(len(events.PluginTagToContent("images")))
"""
PYTHON = """
import torch, fmapviz
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
with fmapviz.capture(model) as maps:
    model(torch.zeros(1, 3, 8, 8))
summary = fmapviz.visualize(model, "photo.jpg", out="runs", name="python", to="png")
print(tuple(maps["0"].values.shape), summary.done)
"""
# What needs an extra; without it, the command names it.
EXTRAS = {
    "heic": ["shapesnet", "photo.heic"],
    "hf": ["hf:google/vit-base-patch16-224", "photo.jpg", "--weights", "random"],
    "ray": ["shapesnet", "photo.jpg", "--engine", "ray"],
    "remote": ["shapesnet", "s3://photos/photo.jpg"],
    "scale": ["shapesnet", "photo.jpg", "--shard", "4"],
    "timm": ["timm:resnet18", "photo.jpg"],
    "ultralytics": ["ultralytics:yolo11n.yaml", "photo.jpg"],
    "video": ["shapesnet", "photo.mp4"],
}
# What modules of these extras, and callbacks for trainers, import.
MODULES = {"av", "huggingface_hub", "ignite", "mlflow", "pyarrow", "pytorch_lightning", "transformers", "ultralytics"}


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    users = {*re.findall(r"\w+", project["optional-dependencies"]["all"][0])[1:], "ultralytics"}
    assert {*EXTRAS} == users - {"show"}  # which only a terminal with sixels misses
    with tempfile.TemporaryDirectory(prefix="fmapviz-package-", dir=beside_cache()) as folder:
        place = Path(folder).resolve()
        wheel, version = build(place)
        check_tag(version)
        for name, options in VERSIONS.items():
            environment = place / options[-1].strip("-") if options else place / "newest"
            install(environment, wheel, options)
            use(environment, wheel, version)
            print(f"{wheel.name} works with {name}: {', '.join(list_packages(environment))}", flush=True)
            shutil.rmtree(environment)


def beside_cache() -> Path | None:
    """Return a folder on the disk of uv's cache, from which an environment links its files instead of copying them."""
    cache = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    return next((path for path in Path(cache).parents if path.is_dir() and not path.is_relative_to(ROOT)), None)


def find_uv() -> str:
    path = shutil.which("uv", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return path or sys.exit("fmapviz: `make package` needs uv: pip install uv.")


# --- what is built


def build(place: Path) -> tuple[Path, str]:
    """Build into `dist` and check the files; return the wheel and the version."""
    for old in DIST.glob("fmapviz-*"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "-d", DIST, cwd=ROOT)
    (wheel,), (source,) = DIST.glob("fmapviz-*.whl"), DIST.glob("fmapviz-*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(place, filter="data")
    (unpacked,) = place.iterdir()
    known = {path for path in run("git", "ls-files", "-z", cwd=ROOT).split("\0") if path}
    check_names(
        source,
        {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()},
        known | {"PKG-INFO"},
    )
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        described = Metadata.from_email(archive.read(metadata), validate=True)
    modules = {name for name in names if not name.startswith(f"{metadata.partition('/')[0]}/")}
    check_names(wheel, modules, {path for path in known if path.startswith("fmapviz/")})
    assert "fmapviz/py.typed" in names
    again = place / "again"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", again, cwd=unpacked)
    assert (again / wheel.name).read_bytes() == wheel.read_bytes(), "the source distribution makes another wheel"
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", again, cwd=ROOT)
    assert (again / source.name).read_bytes() == source.read_bytes(), "the source distribution is another one each time"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not thorough and not zoo"]
    run(sys.executable, "-m", "pytest", *options, "tests/draw", "tests/whole/test_repository.py",
        cwd=unpacked, env={**os.environ, "PYTHONPATH": str(unpacked)})  # fmt: skip
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(modules)} files")
    print(f"{source.name}: {source.stat().st_size / 1e6:.1f} MB, {len(known)} files; its tests pass", flush=True)
    return wheel, str(described.version)


def check_names(archive: Path, names: set[str], wanted: set[str]) -> None:
    """Fail if an archive lacks a file, or holds one that git does not know."""
    for problem, found in (("lacks", wanted - names), ("holds what git does not know:", names - wanted)):
        if found:
            sys.exit(f"fmapviz: {archive.name} {problem} {', '.join(sorted(found))}.")


def check_tag(version: str) -> None:
    """Fail if the tag of a release is not the version's, or the changelog does not have the version."""
    tag = os.environ.get("TAG")
    if tag and tag != f"v{version}":
        sys.exit(f"fmapviz: the tag {tag} is not that of the version {version}, v{version}.")
    if tag and f"\n## [{version}] - " not in (ROOT / ".github/CHANGELOG.md").read_text():
        sys.exit(f"fmapviz: the changelog has no section of the version {version}.")


# --- where it is installed


def install(environment: Path, wheel: Path, options: list[str]) -> None:
    """Install the wheel and the packages that it needs into an empty environment, and guard that."""
    paths = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    # The packages first: uv takes the lowest versions only of those that are named directly.
    if subprocess.run([sys.executable, ROOT / ".ci/install.py", environment, *options], env=paths, check=False).returncode:
        sys.exit(1)  # which says why
    to_python = ["--quiet", "--python", environment]
    run(find_uv(), "pip", "install", *to_python, "--offline", "--no-deps", "--reinstall-package", "fmapviz", wheel)
    run(find_uv(), "pip", "check", *to_python)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "guard.py").write_text(GUARD.format(clone=str(ROOT), environment=str(environment)))
    (site / "guard.pth").write_text("import guard\n")


def list_packages(environment: Path) -> list[str]:
    """Return the versions of the packages that pyproject.toml names."""
    listed = run(find_uv(), "pip", "freeze", "--python", environment)
    return [line for line in listed.splitlines() if line.startswith(("torch==", "torchvision==", "numpy==", "pillow=="))]


# --- what it does there


def use(environment: Path, wheel: Path, version: str) -> None:
    """Do in an empty folder what a newcomer does."""
    place = environment / "../work"
    place.mkdir()
    home = place / "home"
    home.mkdir()
    variables = {"HOME": str(home), "PATH": f"{environment}/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "BROWSER": "true"}
    variables["PYTHONPYCACHEPREFIX"] = str(home / "compiled")  # otherwise each command compiles PyTorch again

    def do(*command, code=0, **more):
        return run(*command, cwd=place, env=variables | more, code=code)

    def count(*command):
        summary = json.loads(do("fmapviz", *command, "--json").splitlines()[-1])
        return summary["pictures"]

    do("python", "-c", f"open({str(ROOT / 'README.md')!r})", code=1)
    do("python", "-c", f"open({str(environment / 'new')!r}, 'w')", code=1)
    do("python", "-c", PHOTO)
    assert do("python", "-c", "import fmapviz; print(fmapviz.__version__)").split() == [version]
    assert version in do("python", "-m", "fmapviz", "--version")
    missing = {name.partition(".")[0] for name in do("python", "-c", IMPORTS).split()}
    assert missing <= MODULES, missing
    assert do("fmapviz", "--help")
    assert do("fmapviz", "-h")
    assert "fmapviz shapesnet photo.jpg --open" in do("fmapviz")
    do("fmapviz", "shapesnet", "photo.jpg", "--open", "--name", "first")
    pictures = count("shapesnet", "photo.jpg")
    assert do("python", "-c", READER, "runs/shapesnet/photo.jpg").split()[-1] == str(pictures)
    pictures = count("shapesnet", "photo.jpg", "--view", "maps,gradcam", "--to", "png,html,stats", "--name", "report")
    assert len([*(place / "runs/report/photo.jpg").glob("*.png")]) == pictures
    look(place / "runs/report/index.html")
    do("fmapviz", "verify", "runs/shapesnet")
    do("fmapviz", "verify", "runs/report")
    # Packages in a folder, for a Python without a virtual environment.
    (site,) = environment.glob("lib/python*/site-packages")
    do(sys._base_executable, "-m", "fmapviz", "shapesnet", "photo.jpg", "--out", "elsewhere", PYTHONPATH=str(site))
    assert do("python", "-c", PYTHON).splitlines()[-1] == "(1, 4, 6, 6) 1"
    with zipfile.ZipFile(wheel) as archive:
        pages = {Path(name).stem: archive.read(name).decode() for name in archive.namelist() if name.endswith(".md")}
    assert do("fmapviz", "--generate", "skill") == pages.pop("SKILL")
    assert {line.split()[0] for line in do("fmapviz", "guide").splitlines() if line.strip()} >= {*pages}
    for page, text in pages.items():
        assert do("fmapviz", "guide", page) == text
    for suffix in (".heic", ".mp4"):
        (place / f"photo{suffix}").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    for extra, command in EXTRAS.items():
        said = do("fmapviz", *command, code=None)
        assert f"pip install 'fmapviz[{extra}]'" in said, (extra, said)
    shutil.rmtree(place)


def look(report: Path) -> None:
    """Open the report in Chromium, if there is one: each resource must be there."""
    executable, arguments = find_browser()
    if executable is None:
        assert os.environ.get("CI") != "true", "no browser"
        print("The report was not opened: there is no Chromium or Chrome here. `make browser` installs one.")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=executable, args=arguments) as browser:
        page, problems = browser.new_page(), []
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(report.as_uri(), wait_until="networkidle")
        assert page.evaluate("[...document.images].length > 0 && [...document.images].every(image => image.naturalWidth)")
        assert problems == []


def run(*command, code=0, **options) -> str:
    """Run a command; return what it printed, also as errors. Fail with that if it ends with another code."""
    done = subprocess.run(
        [str(each) for each in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if code is not None and done.returncode != code:
        sys.exit(f"{done.stdout}\nfmapviz: {' '.join(map(str, command))[:200]} ended with {done.returncode}.")
    return done.stdout


if __name__ == "__main__":
    main()
