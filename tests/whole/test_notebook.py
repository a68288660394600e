"""The notebook runs from its first cell to its last, and its cells show their results."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from extras import needs
from waiting import PATIENCE
from warm import OFF

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / ".github" / "notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]

# In a process of its own: the libraries of Jupyter warn, and start threads.
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=float(sys.argv[2]), kernel_name="python3").execute()
nbformat.write(notebook, "executed.ipynb")
"""


# A kernel that has imported torch and fmapviz already, see `warm.py`.
KERNEL = "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"


@pytest.fixture(scope="module")
def executed(tmp_path_factory, warm):
    """The directory in which the notebook was run, and the outputs of its cells by their first lines."""
    place = tmp_path_factory.mktemp("notebook")
    shutil.copytree(ROOT / "sample_images" / "shapes", place / "sample_images" / "shapes")
    own = {name: str(place / ".home") for name in ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    if warm != OFF:
        kernel = place / "share/kernels/python3/kernel.json"
        kernel.parent.mkdir(parents=True)
        server = [sys.executable, "-S", str(ROOT / "tests/support/warm.py"), warm, "run", "-c", KERNEL]
        kernel.write_text(
            json.dumps({"argv": [*server, "-f", "{connection_file}"], "display_name": "warm", "language": "python"})
        )
        own["JUPYTER_PATH"] = str(place / "share")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-c", EXECUTE, NOTEBOOK, str(PATIENCE)]
    done = subprocess.run(
        command, cwd=place, env={**os.environ, **own, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cells = json.loads((place / "executed.ipynb").read_text())["cells"]
    return place, ["".join(cell["source"]) for cell in cells], [cell.get("outputs", []) for cell in cells]


def test_the_notebook_is_stored_without_results():
    assert not [cell for cell in CELLS if cell.get("outputs") or cell.get("execution_count")]
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert NOTEBOOK.stat().st_size < 20_000


def test_links_of_the_notebook_exist():
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets
    assert all((NOTEBOOK.parent / target).is_file() for target in targets)


@needs("nbclient", "test")
@needs("ipykernel", "test")
@pytest.mark.thorough
def test_each_cell_of_the_notebook_shows_its_result(executed):
    place, sources, outputs = executed

    def shown(beginning):
        """Return the results of the cell with this beginning, by MIME type, and its output."""
        (found,) = (each for source, each in zip(sources, outputs, strict=True) if source.startswith(beginning))
        data = {kind: "".join(value) for each in found for kind, value in each.get("data", {}).items()}
        return data | {"printed": "".join("".join(each.get("text", "")) for each in found)}

    assert not [each for cell in outputs for each in cell if each["output_type"] == "error" or each.get("name") == "stderr"]
    for beginning in ("fmapviz.cam(", 'maps["features.2.conv"].show', "grid =", "state ="):
        assert "image/png" in shown(beginning), beginning
    line = shown("with fmapviz.capture")["text/plain"]
    assert re.fullmatch(r"FeatureMap\('features\.2\.conv', Conv2d, \(1, \d+, 24, 24\), float32, cpu, \S+\.\.\S+\)", line), (
        line
    )
    assert shown("try:")["printed"].endswith("did you mean 'features.2.conv', 'features.7.conv', 'features.6.conv'?\n")
    run = shown("inputs =")
    assert "8 done" in run["text/html"]
    links = re.findall('href="([^"]+)"', run["text/html"])
    assert links == ["runs/notebook", "runs/notebook/index.html"]
    assert all((place / link).exists() for link in links)
    assert shown("again =")["printed"] == "0 drawn, 8 skipped\n"
    assert shown("state =")["printed"] == "shapesnet (state dict)\n"


@pytest.mark.thorough
@needs("nbclient", "test")
@needs("ipykernel", "test")
def test_a_progress_bar_is_shown_only_during_a_run(executed):
    _, sources, outputs = executed
    bars = [
        (source, "".join(each["data"]["text/html"]))
        for source, cell in zip(sources, outputs, strict=True)
        for each in cell
        if "<progress" in "".join(each.get("data", {}).get("text/html", ""))
    ]
    ((source, bar),) = bars
    assert source.startswith("inputs =")
    assert re.fullmatch(r'<progress value="8" max="8"></progress> 8 of 8 images, \d+ s', bar)
