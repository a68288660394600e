"""A record runs no other code than recorded files, and calls nothing but what they define, and classes of networks."""

from __future__ import annotations

import py_compile
import shutil
import sys
import textwrap

import pytest
from cases import often
from recorded_runs import CODE, draw, furnish

from fmapviz.config.sample import SampleSize
from fmapviz.core import checksummed_json
from fmapviz.errors import FmapvizError, RefusedError
from fmapviz.run.finished_run import open_finished_run
from fmapviz.run.redraw import redraw
from fmapviz.run.rerun import plan_rerun, read_recorded, rerun
from fmapviz.store.digest import Digests
from fmapviz.store.remote.local_copy import local_copy
from fmapviz.store.run import read_run
from fmapviz.store.verify import verify_copy

MORE = """
    import subprocess
    from functools import partial
    from subprocess import check_output

    import torchvision
    from helper import marker
    from torchvision.models import squeezenet1_1

    held = partial(subprocess.check_output)


    class Net(nn.Sequential):
        start = staticmethod(subprocess.check_output)
"""
MODULES = ("net", "helper", "far", "v", "torchvision_helper")


def redrawn(run, _out):
    with local_copy(run) as copy:
        digests = Digests()
        list(verify_copy(copy, digests=digests))
        found = list(redraw(copy, digests, SampleSize.parse("1")))
    if reasons := [each.reason for each in found if each.status == "undrawn"]:
        raise RefusedError(reasons[0])


def opened(run, _out):
    with open_finished_run(run):
        pass


COMMANDS = {
    "rerun": lambda run, out: rerun(read_recorded(run), out=out),
    "rerun --plan": lambda run, out: plan_rerun(read_recorded(run), out=out),
    "verify --redraw": redrawn,
    "top": opened,
}
OFTEN = ("rerun", "verify --redraw")


def forget():
    """Forget the modules of a run, as another process does."""
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory with a network of several files, a view in another folder, and a run of them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    furnish(tmp_path)
    for folder in ("lib", "views"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lib/far.py").write_text("marker = 1\n")
    (tmp_path / "helper.py").write_text(f"import sys\nsys.path.append({str(tmp_path / 'lib')!r})\nfrom far import marker\n")
    (tmp_path / "net.py").write_text(textwrap.dedent(CODE) + textwrap.dedent(MORE))
    (tmp_path / "views/v.py").write_text("def energy(maps):\n    return maps.square().mean(1)\n")
    forget()
    run = draw(tmp_path, tmp_path / "out", to="png,stats", layers="0", views="maps,views/v.py:energy", name="first")
    forget()
    monkeypatch.chdir(tmp_path)
    yield tmp_path, run
    forget()


def change(run, model=None, **request):
    """Let the record of a run name something else; its checksum is right."""
    record = {name: value for name, value in read_run(run).items() if name != "sha256"}
    if model:
        record["settings"]["model"] = record["request"]["model"] = model
    if request.get("own") == {}:
        record["settings"]["views"] = ["maps"]
    record["request"] |= request
    (run / "run.json").write_bytes(checksummed_json.dumps(record))


def mark(place):
    """Return a line that leaves a file behind when it is run."""
    return f"open({str(place / 'mark')!r}, 'w').close()\n"


@pytest.mark.parametrize("command", often(OFTEN, of=COMMANDS))
def test_unchanged_code_is_run(command, own):
    place, run = own
    COMMANDS[command](run, place / "again")
    assert read_run(run)["request"]["code"].keys() == {"net.py", "views/v.py"}
    assert read_run(run)["request"]["code"]["net.py"].keys() == {"net.py", "helper.py", "lib/far.py", "views/v.py"}


@pytest.mark.parametrize("command", often(OFTEN, of=COMMANDS))
def test_changed_code_is_refused_before_anything_is_run(command, own):
    place, run = own
    for file in ("net.py", "helper.py", "lib/far.py", "views/v.py"):
        before = (place / file).read_text()
        (place / file).write_text(mark(place) + before)
        changed = f"was drawn with something else: .*{file.rpartition('/')[2]} has changed"
        with pytest.raises(FmapvizError, match=changed):
            COMMANDS[command](run, place / "again")
        assert not (place / "mark").exists()
        assert not {"net", "v"} & sys.modules.keys()
        (place / file).write_text(before)


@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_new_files_beside_the_code_are_not_run(command, own):
    place, run = own
    (place / "far").mkdir()  # found before lib/far.py
    (place / "far/__init__.py").write_text(mark(place))
    with pytest.raises(FmapvizError, match="would be run, and the record holds no checksum of it"):
        COMMANDS[command](run, place / "again")
    assert not (place / "mark").exists()


@pytest.mark.parametrize("name", ["net", "helper"])
def test_compiled_files_are_not_run(name, own):
    place, run = own
    source = place / f"{name}.py"
    shutil.copy2(source, place / "copy")
    source.write_text(mark(place))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert list((place / "__pycache__").iterdir())
    shutil.copy2(place / "copy", source)
    rerun(read_recorded(run), out=place / "again")
    assert not (place / "mark").exists()


FOREIGN = [
    "subprocess:check_output(args=['touch', 'mark'])",
    "builtins:open(file='mark', mode='w')",
    "os.path:Any",
    "__main__:x(a=1)",
    "shutil:copyfile(src='net.py', dst='mark')",
    f"{shutil.__file__}:copyfile(src='net.py', dst='mark')",
    "torch:save(obj=1, f='mark')",
    "torchvision.models:squeezenet1_1()",
    "numpy:save(file='mark', arr=1)",
    "net.py:check_output(args=['touch', 'mark'])",
    "net.py:subprocess.check_output(args=['touch', 'mark'])",
    "net.py:Net.start(args=['touch', 'mark'])",
    "net.py:held(args=['touch', 'mark'])",
    "net.py:squeezenet1_1()",
    "net.py:torch.save(obj=1, f='mark')",
    "views/../other.py:build",
    "other:build",
]


@pytest.mark.parametrize("command", often(OFTEN[:1], of=COMMANDS))
def test_a_forged_model_is_neither_imported_nor_called(command, own):
    place, run = own
    (place / "other.py").write_text(mark(place))
    for model in FOREIGN:
        change(run, model)
        with pytest.raises(FmapvizError) as refused:
            COMMANDS[command](run, place / "again")
        assert "something else" not in str(refused.value), model
        assert not (place / "mark").exists(), model
        forget()


def test_a_forged_view_or_format_is_neither_imported_nor_called(own):
    place, run = own
    (place / "other.py").write_text(mark(place))
    for reference in ("os:system", "net.py:check_output", "other.py:energy", "torch:save"):
        for own_code in ({"energy": reference}, {"energy": "views/v.py:energy", "stats": reference}):
            change(run, own=own_code)
            with pytest.raises(FmapvizError):
                rerun(read_recorded(run), out=place / "again")
            assert not (place / "mark").exists(), reference


def test_a_lone_record_runs_no_command(own, tmp_path_factory, fmapviz):
    _, run = own
    alone = tmp_path_factory.mktemp("alone")
    change(run, f"subprocess:check_output(args=['touch', '{alone / 'mark'}'])", code={}, own={})
    shutil.copy(run / "run.json", alone / "evil.json")
    done = fmapviz("rerun", alone / "evil.json", "--out", alone / "runs")
    assert b"'subprocess' is of the standard library, which is not run for a record" in done.stderr, done.stderr
    assert (done.returncode, [path.name for path in alone.iterdir()]) == (6, ["evil.json"])


def test_a_class_of_networks_of_an_installed_package_is_called(tmp_path):
    furnish(tmp_path)
    run = draw(
        tmp_path, tmp_path / "out", model="torchvision.models:SqueezeNet(num_classes=3)", to="png", layers="features.0"
    )
    assert rerun(read_recorded(run), out=tmp_path).same
