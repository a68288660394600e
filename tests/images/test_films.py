"""Films are read frame by frame: each frame is the one of its number, in any order and by any process."""

import itertools
import math
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from cases import thorough
from extras import av
from films import CELL, GOP, number_of, picture_of, write_animation, write_film
from PIL import Image

from fmapviz.config import RunConfig
from fmapviz.errors import InputError, RequestError
from fmapviz.images import films
from fmapviz.images.film_decoder import FilmDecoder
from fmapviz.images.films import FrameChoice, check_readable, close_films, list_frames, rate_of, read_frames
from fmapviz.images.find import find_images, look_again, path_hash
from fmapviz.images.frames import Frames, file_of, frames_of
from fmapviz.types import Failure

# Each way in which a container numbers and reorders its frames.
KINDS = [
    ("a.mp4", "libx264"),
    ("a.mov", "libx264"),
    ("a.mkv", "libx264"),
    ("a.webm", "libvpx-vp9"),
    ("b.webm", "libvpx"),
    ("a.avi", "mpeg4"),
    ("a.mpg", "mpeg2video"),
    ("b.mp4", "libsvtav1"),
]


@pytest.fixture(autouse=True)
def closed():
    yield
    close_films()


def listed(*paths, **choice):
    found = list(list_frames(find_images(paths), FrameChoice(**choice)))
    return [each for each in found if not isinstance(each, Failure)], [each for each in found if isinstance(each, Failure)]


def read(file, *, channels=3, count=1):
    return [image.pixels for image in read_frames(frames_of(file.path), channels=channels, count=count)]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "codec"), KINDS)
def test_frames_are_read_by_number_in_any_order(tmp_path, name, codec):
    film = write_film(tmp_path / name, 30, codec=codec)
    if hasattr(os, "sched_getscheduler"):
        assert os.sched_getscheduler(0) == os.SCHED_OTHER  # or the machine may stand still from now on
    frames, failures = listed(film)
    assert [frame.unit for frame in frames] == [f"{name}/{number:06d}" for number in range(30)]
    assert failures == []
    in_order = [np.asarray(read(frame)[0]) for frame in frames]
    assert [number_of(Image.fromarray(pixels)) for pixels in in_order] == list(range(30))
    close_films()
    for number in random.Random(0).sample(range(30), 30):
        assert np.array_equal(read(frames[number])[0], in_order[number]), number


@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", [".gif", ".webp", *thorough(".apng")])
def test_animated_pictures_are_films_and_others_are_not(tmp_path, suffix):
    film, still = write_animation(tmp_path / f"moving{suffix}"), tmp_path / f"still{suffix}"
    Image.fromarray(picture_of(5)).save(still, format="PNG" if suffix == ".apng" else None)
    frames, failures = listed(tmp_path)
    assert [frame.unit for frame in frames] == [*(f"{film.name}/{number:06d}" for number in range(20)), still.name]
    assert failures == []
    assert [number_of(read(frame)[0]) for frame in frames[:20]] == list(range(20))
    assert [number_of(read(frame)[0]) for frame in frames[19::-1]] == list(range(20))[::-1]
    assert rate_of(str(film)) == 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"every": 25}, [0, 25, 50]),
        ({"start": 55}, [55, 56, 57, 58, 59]),
        ({"start": 3, "stop": 10, "every": 3}, [3, 6, 9]),
        ({"start": 58, "stop": 100}, [58, 59]),
    ],
)
def test_frames_are_chosen_as_by_a_slice(tmp_path, choice, expected):
    film = write_film(tmp_path / "clip.mp4")
    assert list(range(60))[choice.get("start", 0) : choice.get("stop") : choice.get("every", 1)] == expected
    frames, failures = listed(film, **choice)
    assert [number_of(read(frame)[0]) for frame in frames] == expected
    assert [frame.unit for frame in list_frames(find_images([film]), FrameChoice(**choice), decode=False)] == [
        frame.unit for frame in frames
    ]
    assert failures == []


def test_a_choice_without_frames_is_a_failure_with_the_number_of_frames(tmp_path):
    frames, failures = listed(write_film(tmp_path / "clip.mp4", 9), start=9)
    assert frames == []
    assert (failures[0].code, "it has 9 frames" in failures[0].message) == ("E_NOTHING", True)


@pytest.mark.thorough
def test_films_of_the_same_name_have_different_folders(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
    paths = [write_film(tmp_path / folder / "clip.mp4", count) for folder, count in (("a", 3), ("b", 5))]
    units = [frame.unit for frame in list_frames(find_images(paths), FrameChoice())]
    assert units[:3] == [f"clip.mp4/{number:06d}" for number in range(3)]
    name = f"clip.mp4~{path_hash(str(paths[1]))}"
    assert units[3:] == [f"{name}/{number:06d}" for number in range(5)]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("choice", "told"), [({"every": 2}, True), ({}, False), *thorough(({"stop": 9}, True), ({"clip": 8}, False))]
)
def test_a_choice_of_frames_without_a_film_is_reported(tmp_path, choice, told):
    Image.new("RGB", (8, 8)).save(tmp_path / "still.gif")
    notices = []
    list(list_frames(find_images([tmp_path]), FrameChoice(**choice), notices.append))
    assert [each.message for each in notices] == ["every= and frames= have no effect: no film is among the inputs"] * told
    write_animation(tmp_path / "moving.gif")
    list(list_frames(find_images([tmp_path]), FrameChoice(**choice), notices.append))
    assert len(notices) == told


def test_a_frame_named_with_fewer_digits_is_missing_and_the_hint_names_it(tmp_path):
    film = write_film(tmp_path / "clip.mp4", 3)
    (failure,) = find_images([f"{film}/2"])
    assert (failure.code, failure.hint) == ("E_MISSING", f"the name of a frame has six digits: {film}/000002")


def test_clips_have_frames_at_equal_distances(tmp_path):
    frames, _ = listed(write_film(tmp_path / "clip.mp4"), every=3, clip=8)
    assert [frame.unit for frame in frames] == ["clip.mp4/000000-000021", "clip.mp4/000024-000045"]
    assert [number_of(pixels) for pixels in read(frames[1], count=8)] == list(range(24, 46, 3))
    for count in (1, 5):
        with pytest.raises(InputError, match="the network takes"):
            read(frames[1], count=count)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9")])
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_frames_before_damage_are_kept_and_the_rest_is_one_failure(tmp_path, name, codec, damage):
    film = write_film(tmp_path / name, codec=codec, noise=50)
    whole = [np.asarray(read(frame)[0]) for frame in listed(film)[0]]
    data = bytearray(film.read_bytes())
    half = len(data) // 2
    data[half : len(data) if damage == "cut" else half + 2000] = b"" if damage == "cut" else bytes(2000)
    film.write_bytes(data)
    frames, failures = listed(film)
    assert 15 < len(frames) < 45
    assert [(each.path, each.code) for each in failures] == [(str(film), "E_DECODE")]
    assert f"film is damaged behind frame {len(frames) - 1} (" in failures[0].message
    sure = len(frames) - (codec == "libvpx-vp9" and damage == "zeros")  # VP9 does not notice that its data end in zeros
    assert all(np.array_equal(read(frames[number])[0], whole[number]) for number in range(sure))


@pytest.mark.thorough
def test_a_damaged_animation_keeps_its_frames_before_the_damage(tmp_path):
    film = write_animation(tmp_path / "clip.gif")
    film.write_bytes(film.read_bytes()[: film.stat().st_size // 2])
    frames, failures = listed(film)
    assert 5 < len(frames) < 15
    assert [each.code for each in failures] == ["E_DECODE"]
    assert [number_of(read(frame)[0]) for frame in frames] == list(range(len(frames)))


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "content", [b"", b"no film", b"\0\0\0\x18ftypmp42", b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n"]
)
def test_a_file_that_is_no_film_is_one_failure(tmp_path, content):
    (tmp_path / "clip.mp4").write_bytes(content)
    frames, failures = listed(tmp_path / "clip.mp4")
    assert frames == []
    assert [each.code for each in failures] in (["E_EMPTY"], ["E_FORMAT"], ["E_DECODE"])
    assert str(tmp_path / "clip.mp4") in failures[0].message


@pytest.mark.thorough
def test_sound_without_pictures_is_one_failure(tmp_path):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert [each.code for each in listed(tmp_path / "sound.mp4")[1]] == ["E_FORMAT"]


@pytest.mark.thorough
@pytest.mark.parametrize(("degrees", "turned"), [(90, 1), (180, 2), (270, 3)])
def test_a_rotated_film_is_shown_upright(tmp_path, degrees, turned):
    try:
        film = write_film(tmp_path / "clip.mp4", 3, rotate=degrees)
    except AttributeError:
        pytest.skip("this PyAV cannot write a rotation")
    plain = write_film(tmp_path / "plain.mp4", 3)
    expected = np.rot90(np.asarray(read(listed(plain)[0][1])[0]), turned)
    assert np.array_equal(read(listed(film)[0][1])[0], expected)


def ffmpegs_upright(pixels, matrix):
    """Turn a picture by FFmpeg's filters as its command does, `configure_input_video_filter` in `ffmpeg_filter.c`."""
    a, b, _, c, d = matrix[:5]
    theta = math.degrees(math.atan2(b / math.hypot(b, d), a / math.hypot(a, c))) % 360
    filters = []
    if abs(theta - 90) < 1:
        filters.append(("transpose", "cclock_flip" if c > 0 else "clock"))
    elif abs(theta - 180) < 1:
        filters += [("hflip", None)] * (a < 0) + [("vflip", None)] * (d < 0)
    elif abs(theta - 270) < 1:
        filters.append(("transpose", "clock_flip" if c < 0 else "cclock"))
    elif d < 0:
        filters.append(("vflip", None))
    graph = av.filter.Graph()
    nodes = [graph.add_buffer(width=pixels.shape[1], height=pixels.shape[0], format="rgb24", time_base=Fraction(1, 25))]
    nodes += [graph.add(name, argument) if argument else graph.add(name) for name, argument in filters]
    nodes.append(graph.add("buffersink"))
    for before, after in itertools.pairwise(nodes):
        before.link_to(after)
    graph.configure()
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    frame.pts, frame.time_base = 0, Fraction(1, 25)
    graph.push(frame)
    return graph.pull().to_ndarray(format="rgb24")


def with_matrix(path, matrix):
    """Replace the display matrix in the header of a film's track."""
    content = bytearray(path.read_bytes())
    begin = content.index(b"tkhd") + 44
    content[begin : begin + 36] = struct.pack(
        ">9i", *(round(value * 65536) for value in matrix[:8]), round(matrix[8] * 2**30)
    )
    path.write_bytes(content)
    return path


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "scale"), [(0, 1), (20, 0.5)], ids=["from the beginning", "from a key frame"])
@pytest.mark.parametrize(
    "matrix",
    [(1, 0, 0, 1), (-1, 0, 0, 1), (-1, 0, 0, -1), (1, 0, 0, -1), (0, 1, 1, 0), (0, 1, -1, 0), (0, -1, -1, 0), (0, -1, 1, 0)],
)
def test_a_film_is_rotated_and_mirrored_as_by_ffmpeg(tmp_path, matrix, number, scale):
    a, b, c, d = (scale * value for value in matrix)
    full = (a, b, 0, c, d, 0, 0, 0, 1)
    paths = write_film(tmp_path / "plain.mp4", 30), with_matrix(write_film(tmp_path / "turned.mp4", 30), full)
    plain, found = (np.asarray(read(next(find_images([f"{path}/{number:06d}"])))[0]) for path in paths)
    assert np.array_equal(found, ffmpegs_upright(plain, full))
    where = {  # the pixel (x, y) of the film is shown at (a x + c y, b x + d y)
        (x, y): (matrix[0] * x + matrix[2] * y, matrix[1] * x + matrix[3] * y) for x in (0, 1) for y in (0, 1)
    }
    left, top = (min(place[axis] for place in where.values()) for axis in (0, 1))
    for (x, y), (across, down) in where.items():
        shown = found[-(down - top), -(across - left)]  # corners: 0 or -1
        assert np.array_equal(shown, plain[-y, -x])


@pytest.mark.thorough
def test_colours_follow_the_tags_of_the_film(tmp_path):
    for space, number in (("bt709", 1), ("smpte170m", 6)):
        film = tmp_path / f"{space}.mp4"
        with av.open(str(film), "w") as container:
            stream = container.add_stream("libx264", rate=5, options={"crf": "0"})
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.codec_context.colorspace = number
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), (220, 40, 60), np.uint8), format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709" if number == 1 else "ITU601")
            container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        pixel = np.asarray(read(listed(film)[0][0])[0])[24, 32].astype(int)
        assert np.abs(pixel - (220, 40, 60)).max() <= 3, space


@pytest.mark.thorough
def test_films_of_one_channel_are_grey_and_others_are_refused(tmp_path):
    frame = listed(write_film(tmp_path / "clip.mp4"))[0][5]
    assert (read(frame, channels=1)[0].mode, number_of(read(frame, channels=1)[0])) == ("L", 5)
    with pytest.raises(InputError) as refusal:
        read(frame, channels=4)
    assert refusal.value.code == "E_CHANNELS"


@pytest.mark.thorough
def test_threads_read_the_frames_of_several_films_at_once(tmp_path):
    paths = [write_film(tmp_path / f"{number}.mp4", 20) for number in range(6)]  # more than are kept open
    frames = listed(*paths)[0]
    random.Random(1).shuffle(frames)
    with ThreadPoolExecutor(4) as threads:
        numbers = list(threads.map(lambda frame: number_of(read(frame)[0]), frames))
    assert numbers == [frames_of(frame.path).first for frame in frames]


def test_a_frame_is_found_and_read_again_by_its_name(tmp_path):
    film = write_film(tmp_path / "clip.mp4")
    (frame,) = find_images([f"{film}/000042"])
    assert (frame.path, frame.unit, frame.version["size"]) == (f"{film}/000042", "clip.mp4/000042", film.stat().st_size)
    assert look_again(frame) == frame
    assert file_of(frame.path) == str(film)
    film.unlink()
    assert look_again(frame) is None
    (missing,) = find_images([f"{film}/000042"])
    assert missing.code == "E_MISSING"


def test_a_folder_named_like_a_film_is_a_folder(tmp_path):
    folder = tmp_path / "clip.mp4"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "000042", format="PNG")
    assert frames_of(str(folder / "000042")) is None
    assert [each.unit for each in listed(folder / "000042")[0]] == ["000042"]


@pytest.mark.thorough
def test_a_decoder_that_dies_costs_one_film(tmp_path, monkeypatch):
    first, second = write_film(tmp_path / "1.mp4"), write_film(tmp_path / "2.mp4")
    frames = list_frames(find_images([first, second]), FrameChoice())
    begun = [next(frames) for _ in range(5)]
    films._open[str(first)]._decoder.kill()
    rest = list(frames)
    assert [each.unit for each in begun + rest] == [f"{name}.mp4/{number:06d}" for name in "12" for number in range(60)]


@pytest.mark.thorough
def test_frames_are_the_same_without_worker_processes(tmp_path, monkeypatch):
    frames = listed(write_film(tmp_path / "clip.mp4", 20))[0]
    before = [np.asarray(read(frame)[0]) for frame in frames]
    close_films()
    monkeypatch.setattr(films, "start_worker", lambda: (_ for _ in ()).throw(OSError("no processes")))
    frames = listed(tmp_path / "clip.mp4")[0]
    assert all(np.array_equal(read(frame)[0], pixels) for frame, pixels in zip(frames, before, strict=True))


def test_a_frame_is_decoded_once_if_it_is_read_after_it_was_listed(tmp_path):
    decoded = []
    with write_film(tmp_path / "clip.mp4").open("rb") as stream:
        film = FilmDecoder(stream)
        for number in range(0, 60, 2):
            assert film.has(number, lambda: decoded.append(1))
            if number >= 10:
                assert number_of(film.read(number - 10, lambda: decoded.append(1))[0]) == number - 10
    assert len(decoded) == 59


def test_a_late_frame_is_decoded_from_the_previous_key_frame(tmp_path):
    decoded = []
    with write_film(tmp_path / "clip.mp4").open("rb") as stream:
        assert number_of(FilmDecoder(stream).read(50, lambda: decoded.append(1))[0]) == 50
    assert len(decoded) <= GOP


@pytest.mark.thorough
def test_rates_of_films_and_names_of_frames_are_parsed(tmp_path):
    assert rate_of(str(write_film(tmp_path / "clip.webm", 5, codec="libvpx-vp9", rate=12))) == Fraction(12)
    assert rate_of(str(tmp_path / "gone.mp4")) is None
    assert frames_of("https://x.org/clip.mp4?key=a/000007") == Frames("https://x.org/clip.mp4?key=a", 7, 7)
    assert frames_of("s3://films/clip.mp4/000007") == Frames("s3://films/clip.mp4", 7, 7)
    assert frames_of("clip.mp4/000007-000003") is None
    assert frames_of("clip.jpg/000007") is None


@pytest.mark.parametrize("frames", ["5", "5:5", "9:2", "-3:", "a:b", "1:2:3", ""])
def test_frame_choices_of_other_forms_are_refused(frames):
    if not frames:
        assert RunConfig("alexnet", frames=frames).frame_range == (0, None)
        return
    with pytest.raises(RequestError, match="no such frames"):
        RunConfig("alexnet", frames=frames)


def test_a_named_film_needs_pyav(monkeypatch, tmp_path):
    monkeypatch.setattr(films, "_has_pyav", lambda: False)
    for named in ([tmp_path / "clip.MP4"], tmp_path / "clip.MP4", str(tmp_path / "clip.MP4")):
        with pytest.raises(RequestError, match="films need the package av") as refusal:
            check_readable(named if isinstance(named, list) else [named])
    once = iter(["clip.mp4"])
    check_readable(once)
    assert next(once) == "clip.mp4"
    assert refusal.value.hint == "pip install 'fmapviz[video]'"
    (tmp_path / "a.png").touch()
    (tmp_path / "b.mp4").touch()
    (tmp_path / "c.mp4").touch()
    notices = []
    left = films.without_unreadable(find_images([tmp_path]), notices.append)
    assert [each.unit for each in left] == ["a.png"]
    assert len(notices) == 1


def test_cells_are_larger_than_the_blur_of_compression():
    assert [number_of(Image.fromarray(picture_of(number))) for number in range(2**7)] == list(range(2**7))
    assert CELL >= 8


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.webm", "libvpx-vp9"), ("a.avi", "mpeg4"), ("a.gif", "")]
)
def test_damage_of_any_kind_is_at_most_one_failure(tmp_path, name, codec):
    film = write_film(tmp_path / name, 24, codec=codec, noise=50) if codec else write_animation(tmp_path / name, 24)
    whole, chance = film.read_bytes(), random.Random(0)
    for _ in range(25):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 10, 300])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        film.write_bytes(data[: chance.choice([len(data), chance.randrange(1, len(data))])])
        frames, failures = listed(film)
        assert len(failures) <= 1
        assert frames or failures
        assert all(failure.code.startswith("E_") and str(film) in failure.message for failure in failures)
        if frames and frames_of(frames[-1].path):  # of an animation, one picture may be left: an image
            assert read(frames[-1])[0].mode == "RGB"
