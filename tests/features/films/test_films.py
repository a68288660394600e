"""Films of a run show the pictures of its units at the film's speed, and do not depend on how it was executed."""

import base64
import io
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from extras import av
from films import SIZE, number_of, picture_of, write_animation, write_film
from PIL import Image, ImageSequence

from fmapviz import visualize
from fmapviz.errors import RequestError
from fmapviz.features.films import gif, mp4
from fmapviz.store.verify import verify

pytest_plugins = ["browser"]  # its fixtures

OPTIONS = {"layers": "features.0.conv", "workers": 2}


def frames_in(film):
    """Return the frames of a film as float arrays, decoded here, and the time between two in seconds."""
    if film.suffix == ".gif":
        with Image.open(film) as image:
            frames = [np.asarray(each.convert("RGB"), float) for each in ImageSequence.Iterator(image)]
            return frames, image.info["duration"] / 1000
    with av.open(str(film)) as container:
        decoded = list(container.decode(video=0))
        times = [frame.time for frame in decoded]
        frames = [frame.to_ndarray(format="rgb24", src_colorspace="ITU709").astype(float) for frame in decoded]
        return frames, times[1] - times[0]


def enlarged(png, size):
    with Image.open(png) as picture:
        return np.asarray(picture.convert("RGB").resize(size, Image.Resampling.NEAREST), float)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    film = write_film(folder / "clip.mp4", 24)
    return visualize("shapesnet", film, to="mp4,gif", every=2, frames="2:20", out=folder / "runs", **OPTIONS).directory


def test_each_picture_has_a_film_beside_the_frames(run):
    assert sorted(path.name for path in (run / "clip.mp4").iterdir()) == [
        *(f"{number:06d}" for number in range(2, 20, 2)),
        "_film",
    ]
    names = {path.name for path in (run / "clip.mp4" / "_film").iterdir()} - {"unit.json"}
    pictures = {path.stem for path in (run / "clip.mp4" / "000002").glob("*.png")}
    assert names == {f"{name}.{form}" for name in pictures for form in ("mp4", "gif")}


@pytest.mark.parametrize("form", ["mp4", "gif"])
def test_a_film_shows_the_pictures_in_their_order_at_the_speed_of_the_film(run, form):
    for film in (run / "clip.mp4" / "_film").glob(f"*.{form}"):
        frames, seconds = frames_in(film)
        assert len(frames) == 9
        assert seconds == pytest.approx(2 / 25)
        for number, frame in zip(range(2, 20, 2), frames, strict=True):
            png = run / "clip.mp4" / f"{number:06d}" / f"{film.stem}.png"
            with Image.open(png) as picture:
                width, height = picture.size
            factor = frame.shape[1] // width
            assert factor == max(1, 480 // max(width, height))
            shown = frame[: height * factor, : width * factor]
            difference = np.abs(shown - enlarged(png, (width * factor, height * factor)))
            assert difference.mean() < (3 if form == "mp4" else 1e-9 if film.stem != "input" else 3), film.name
    others = [np.abs(frames[0] - frame).mean() for frame in frames[1:]]  # negative control: frames differ
    assert min(others) > 0.05


def test_verify_checks_the_films(run):
    assert [problem for verified in verify(run) for problem in verified.problems] == []


@pytest.mark.thorough
def test_films_are_rewritten_only_if_frames_change(tmp_path):
    film, notices = write_film(tmp_path / "clip.mp4", 12), []

    def draw(**more):
        notices.clear()
        events = lambda event: notices.append(getattr(event, "message", ""))  # noqa: E731
        summary = visualize("shapesnet", film, to="mp4", out=tmp_path / "runs", on_event=events, **OPTIONS, **more)
        unit = summary.directory / "clip.mp4" / "_film"
        return {path.name: path.read_bytes() for path in unit.glob("*.mp4")}, [text for text in notices if "writing" in text]

    first, written = draw(frames="0:6")
    assert len(written) == 1
    assert draw(frames="0:6") == (first, [])
    all_frames, written = draw()
    assert (len(written), all_frames.keys()) == (1, first.keys())
    assert all(all_frames[name] != first[name] for name in first)
    at_once = visualize("shapesnet", film, to="mp4", out=tmp_path / "other", **(OPTIONS | {"workers": 1})).directory
    assert {path.name: path.read_bytes() for path in (at_once / "clip.mp4" / "_film").glob("*.mp4")} == all_frames


def test_images_without_a_film_are_shown_in_their_order(tmp_path):
    for number in (10, 2, 1):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(tmp_path / f"x{number}.png")
    run = visualize("shapesnet", tmp_path, to="gif", out=tmp_path / "runs", **OPTIONS).directory
    frames, seconds = frames_in(run / "_film" / "input.gif")
    assert [round(frame[0, 0, 0]) // 20 for frame in frames] == [1, 2, 10]
    assert seconds == 0.1


def test_pictures_of_several_sizes_share_a_film_from_the_top_left(tmp_path):
    for number, size in enumerate([(60, 40), (30, 50)]):
        Image.new("RGB", size, (0, 100 + 100 * number, 0)).save(tmp_path / f"{number}.png")
    options = OPTIONS | {"layers": "0"}
    from torch import nn

    from fmapviz import InputOptions

    network = nn.Sequential(nn.Conv2d(3, 2, 3))
    run = visualize(
        network, tmp_path, to="mp4", out=tmp_path / "runs", preprocessing=InputOptions(fit="none"), **options
    ).directory
    frames, _ = frames_in(run / "_film" / "input.mp4")
    assert [frame.shape for frame in frames] == [(50 * 8, 60 * 8, 3)] * 2
    assert [round(frame[10, 10, 1] / 100) for frame in frames] == [1, 2]


@pytest.mark.thorough
def test_the_shared_scale_covers_all_frames_of_a_clip(tmp_path):
    from fmapviz import Style

    film = write_animation(tmp_path / "clip.gif", 6)
    run = visualize("shapesnet", film, to="png", style=Style(norm="run"), out=tmp_path / "runs", **OPTIONS).directory
    survey = json.loads((run / "survey.json").read_text())
    assert survey["images"] == 6
    records = [json.loads((run / "clip.gif" / f"{number:06d}" / "unit.json").read_text()) for number in range(6)]
    (low, high) = (survey["layers"][0][name] for name in ("low", "high"))
    assert low == min(record["layers"][0]["min"] for record in records)
    assert high == max(record["layers"][0]["max"] for record in records)


def test_a_remote_run_has_no_films(tmp_path):
    with pytest.raises(RequestError, match="needs a local directory"):
        visualize("shapesnet", tmp_path, to="mp4", out="s3://bucket/runs")


@pytest.mark.parametrize("rate", [Fraction(10), Fraction(30), Fraction(30000, 1001), Fraction(200)])
def test_a_gif_keeps_its_time_as_far_as_hundredths_of_a_second_can(tmp_path, rate):
    gif.write_film(tmp_path / "x.gif", [Image.new("RGB", (8, 8), (n, 0, 0)) for n in range(30)], size=(8, 8), rate=rate)
    with Image.open(tmp_path / "x.gif") as image:
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
        assert (image.n_frames, image.info["loop"]) == (30, 0)
    expected = max(float(30 / rate), 30 * 0.02)
    assert sum(durations) / 1000 == pytest.approx(expected, abs=0.011)


def test_a_gif_keeps_up_to_256_colours_exactly(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    gif.write_film(tmp_path / "x.gif", [Image.fromarray(pixels)] * 2, size=(16, 16), rate=Fraction(10))
    assert all(np.array_equal(frame, pixels) for frame in frames_in(tmp_path / "x.gif")[0])


def test_an_odd_size_is_padded_to_an_even_one_for_mp4(tmp_path):
    pictures = [Image.new("RGB", (15, 9), (255, 255, 255))] * 3
    mp4.write_film(tmp_path / "x.mp4", pictures, size=(15, 9), rate=Fraction(10))
    frames, seconds = frames_in(tmp_path / "x.mp4")
    assert [frame.shape for frame in frames] == [(10, 16, 3)] * 3
    assert (min(frame.min() for frame in frames) > 250, seconds) == (True, pytest.approx(0.1))


@pytest.mark.thorough
def test_films_play_in_a_browser(browser, run):
    page = browser.new_page()
    try:
        for name in ("input", "00_features.0.conv.maps"):
            width, height, seconds, pixels = page.evaluate(_PLAY, as_url(run / "clip.mp4" / "_film" / f"{name}.mp4"))
            with Image.open(run / "clip.mp4" / "000010" / f"{name}.png") as picture:
                factor = max(1, 480 // max(picture.size))
            assert (width, height) == tuple(side * factor + side * factor % 2 for side in picture.size)
            assert seconds == pytest.approx(9 * 2 / 25, abs=0.01)
            with Image.open(io.BytesIO(base64.b64decode(pixels.partition(",")[2]))) as picture:
                shown = np.asarray(picture.convert("RGB")).astype(float)
            expected = enlarged(run / "clip.mp4" / "000010" / f"{name}.png", (width, height))
            other = enlarged(run / "clip.mp4" / "000002" / f"{name}.png", (width, height))
            assert np.abs(shown - expected).mean() < min(4, np.abs(shown - other).mean())
    finally:
        page.close()


def as_url(film):
    """Return a film as a data URL: a browser does not allow reading the pixels of a file."""
    return f"data:video/mp4;base64,{base64.b64encode(film.read_bytes()).decode()}"


_PLAY = """async address => {
    const video = document.createElement('video');
    video.muted = true;
    await new Promise((resolve, reject) => {
        video.onloadeddata = resolve;
        video.onerror = () => reject(video.error.message);
        video.src = address;
    });
    await video.play();
    await new Promise(resolve => { video.ontimeupdate = () => video.currentTime > 0 && resolve(); });
    video.pause();
    video.currentTime = 4.5 * 2 / 25;
    await new Promise(resolve => { video.onseeked = resolve; });
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext('2d').drawImage(video, 0, 0);
    return [canvas.width, canvas.height, video.duration, canvas.toDataURL()];  // Playwright takes minutes for a list
}"""


def test_notices_count_frames(run):
    with Image.open(run / "clip.mp4" / "000006" / "input.png") as picture:
        assert picture.size == (96, 96)
    assert number_of(Image.fromarray(np.zeros((48, 112, 3), np.uint8))) == 0


@pytest.mark.thorough
def test_the_frames_of_all_clips_of_a_video_model_are_one_film(tmp_path):
    film = write_film(tmp_path / "clip.mp4", 32)
    options = {"weights": "random", "layers": "layer1.0.conv1.0", "workers": 2}
    run = visualize("r3d_18", film, to="gif", out=tmp_path / "runs", **options).directory / "clip.mp4"
    clips = ["000000-000015", "000016-000031"]
    assert {path.name for path in (run / "_film").iterdir()} == {"00_layer1.0.conv1.0.maps.gif", "input.gif", "unit.json"}
    frames, seconds = frames_in(run / "_film" / "00_layer1.0.conv1.0.maps.gif")
    assert seconds == pytest.approx(1 / 25)
    pictures = [run / clip / f"00_layer1.0.conv1.0.t{number:02d}.maps.png" for clip in clips for number in range(16)]
    assert len(frames) == 32
    for frame, png in zip(frames, pictures, strict=True):
        with Image.open(png) as picture:
            size = picture.size
        shown = enlarged(png, (frame.shape[1] // size[0] * size[0], frame.shape[0] // size[1] * size[1]))
        assert np.abs(frame[: shown.shape[0], : shown.shape[1]] - shown).mean() < 1e-9


BEGINS = [0, 40, 80, 200, 240, 1000, 1040, 1300]  # milliseconds


def write_uneven(path):
    """Write a film whose frames begin at `BEGINS`."""
    if path.suffix == ".gif":
        first, *others = (Image.fromarray(picture_of(number)) for number in range(len(BEGINS)))
        durations = [after - before for before, after in itertools.pairwise([*BEGINS, 1340])]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0)
        return path
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"bf": "2"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, begin in enumerate(BEGINS):
            frame = av.VideoFrame.from_ndarray(picture_of(number), format="rgb24")
            frame.pts, frame.time_base = begin, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def begins_of(path):
    """Return when the frames of a film begin, in milliseconds, by its decoder."""
    if path.suffix == ".gif":
        with Image.open(path) as image:
            durations = []
            for number in range(image.n_frames):
                image.seek(number)
                durations.append(image.info["duration"])
        return [sum(durations[:number]) for number in range(len(durations))]
    with av.open(str(path)) as container:
        return [round(float(1000 * frame.time)) for frame in container.decode(video=0)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["phone.mp4", "phone.mkv", "phone.gif"])
@pytest.mark.parametrize("every", [1, 3])
def test_films_of_a_film_whose_rate_varies_keep_its_times(tmp_path, name, every):
    told = []
    film = write_uneven(tmp_path / name)
    assert begins_of(film) == BEGINS
    summary = visualize(
        "shapesnet", film, layers="features.0.conv", to=["mp4", "gif"], out=tmp_path / "runs", every=every, workers=1,
        predictions=0,
        on_event=lambda event: told.append(getattr(event, "message", "")),
    )  # fmt: skip
    written = summary.directory / name / "_film"
    for form in ("mp4", "gif"):
        assert begins_of(written / f"input.{form}") == pytest.approx(BEGINS[::every], abs=10 if form == "gif" else 1)
    assert any("at the times of the film, whose rate varies" in message for message in told)
