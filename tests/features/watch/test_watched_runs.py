"""The run that shows a training: its units, its report and its removal."""

import pytest
from image_files import paint
from slider import loads, shown, slide, text_of
from step_runs import OPTIONS, STEPS, net_at, page_of

from fmapviz.features.watch.watch import Watch
from fmapviz.store.remove import check_removable, remove_run
from fmapviz.store.unit import read_unit
from fmapviz.store.unit_key import key_of

pytest_plugins = ["browser"]  # its fixtures


def square(maps):
    return maps.square().mean(1)


def write_watched(root, *, steps=STEPS[:3], **options):
    """Draw an image while a network is trained, as a training does; return the run's directory."""
    current = [net_at(steps[0])]
    image = paint(root / "in/cat.png", 1, (24, 30))
    own = {
        "types": OPTIONS["types"],
        "preprocessing": OPTIONS["preprocessing"],
        "budget": 1.0,
        "strict": True,
        "on_event": str,
    }
    with Watch(lambda: current[0], image, out=root / "out", every=lambda step: step in steps, **own, **options) as watch:
        for step in range(steps[-1] + 1):
            current[0] = net_at(step) if step in steps else current[0]
            watch(step)
    return watch.directory


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The run of a training, with pictures of the model; only read."""
    root = tmp_path_factory.mktemp("watched")
    return write_watched(root, views=["maps", "kernels"])


def test_a_training_is_listed_with_the_steps_of_the_model(watched):
    page = page_of(watched)
    (entry,) = page["units"]
    assert (entry["unit"], [each["step"] for each in entry["steps"]]) == ("cat.png", list(STEPS[:3]))
    assert entry["steps"][0].keys() == {"step", "href"}  # one input for all
    assert page["models"] == [{"step": step, "href": f"_model/step_{step:06d}/"} for step in STEPS[:3]]
    assert page["curves"] == "steps.js"


@pytest.mark.thorough
def test_the_steps_of_a_training_name_their_image_by_its_path(tmp_path):
    run = write_watched(tmp_path, views=["maps", "kernels"])
    keys = {str(each.parent.relative_to(run)): key_of(read_unit(each.parent)) for each in run.rglob("unit.json")}
    assert {keys[f"cat.png/step_{step:06d}"].path for step in (0, 10, 20)} == {str(tmp_path / "in/cat.png")}
    assert {(key.kind, key.step, key.series) for key in keys.values()} == {
        *(("image", step, "cat.png") for step in (0, 10, 20)),
        *(("model", step, "_model") for step in (0, 10, 20)),
        ("filmstrip", None, "cat.png"),
    }


def test_a_run_of_a_training_is_removed_with_its_events_and_filmstrips(tmp_path):
    run = write_watched(tmp_path, steps=(0, 1))
    assert {"film.npz"} < {path.name for path in run.iterdir()}
    assert list(run.glob("events.out.tfevents.*"))
    check_removable(run)
    remove_run(run)
    assert not run.exists()


@pytest.mark.thorough
def test_the_page_shows_the_model_of_the_step(open_report, tmp_path):
    run = write_watched(tmp_path, views=["maps", "kernels"])
    report = open_report(run, "#view=kernels")
    files = [f"_model/step_{step:06d}/00_first.kernels.png" for step in STEPS]
    for position in (2, 1, 0):
        assert shown(report) == (text_of(position, STEPS[:3]), [files[position]])
        assert report.text(".pane h3") == f"The model, step {STEPS[position]}"
        if position:
            loads(report, files[position - 1])  # before it is shown
        report.press(",")
    report.press("c")
    assert shown(report)[1] == [files[0], files[2]]
    report.look_at("maps")
    assert shown(report)[1] == [f"cat.png/step_{step:06d}/00_first.maps.png" for step in (0, 20)]


@pytest.mark.thorough
def test_filmstrips_are_a_view_of_their_image_at_all_steps(open_report, tmp_path):
    run = write_watched(tmp_path, views=["maps"])
    report = open_report(run, "#view=maps")
    assert report.text("#images .count") == "1"
    report.look_at("filmstrip")
    strips = [f"cat.png/_filmstrip/{name}.filmstrip.png" for name in ("00_first", "01_relu")]
    for position in (2, 0):
        if position != 2:
            slide(report, position)
        assert report.text(".pane h3") == "All steps of the training"
        assert shown(report) == (text_of(position, STEPS[:3]), strips[:1])
        assert report.page.locator(".viewport > img").evaluate("image => image.naturalWidth") > 0
    assert (run / strips[1]).exists()
    report.look_at("maps")
    assert shown(report)[1] == ["cat.png/step_000000/00_first.maps.png"]


def test_a_training_accepts_own_views(tmp_path):
    run = write_watched(tmp_path, steps=(0,), views=["maps", square])
    assert list(run.rglob("*.square.png"))
