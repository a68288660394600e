"""The command as people and scripts type it, in processes of its own."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from cases import thorough
from image_files import save_picture
from json_lines import check_lines
from terminals import in_terminal
from waiting import PATIENCE
from warm import OFF, start_process

from fmapviz.cli import options
from fmapviz.cli.app import app
from fmapviz.cli.commands import commands
from fmapviz.cli.process import importing
from fmapviz.core import registry
from fmapviz.errors import RequestError
from fmapviz.models.load import model_names

ERASE = "\r\x1b[K"
SMALL = ("--weights", "random", "--size", "64")  # squeezenet1_1 at this size draws in milliseconds


def lines(data):
    return data.decode().splitlines()


def objects(data):
    return [json.loads(line) for line in lines(data)]


class TestAnswersWithoutTorch:
    """Help, version, completion and usage errors do not import torch."""

    WRONG = (
        (["alexnt", "x.png"], "no such model: 'alexnt'", "'alexnet'"),
        (["layers", "resnet19"], "no such model: 'resnet19'", "'resnet18'"),
        (["models", "zzzz"], "no model name matches 'zzzz'", "`fmapviz models` lists all names"),
        (["alexnet", "x.png", "--view", "mapz"], "no such view: 'mapz'", "'maps'"),
        (["alexnet", "x.png", "--fore"], "no such option: '--fore'", "--force"),
        (["layers", "alexnet", "--bogus"], "no such option: '--bogus'", "fmapviz layers --help"),
        (["verify"], "missing argument 'DIR'", "fmapviz verify --help"),
        (["alexnet", "x.png", "--norm", "fixed:2,1"], "no such norm: 'fixed:2,1'", "fixed:LO,HI"),
        (["lyers", "alexnet"], "no such command or model: 'lyers'", "`fmapviz layers`"),
        (["alexnet"], "missing argument 'INPUT'", ""),
        (["extract", "runs"], "missing option '--image'", "fmapviz extract --help"),
        (["guide", "weigths"], "no such page: 'weigths'", "'weights'"),
        (["gide"], "no such command or model: 'gide'", "did you mean `fmapviz guide`?"),
        (["guides"], "no such command or model: 'guides'", "did you mean `fmapviz guide`?"),
        (["layer"], "no such command or model: 'layer'", "did you mean `fmapviz layers`?"),
        (["weights"], "no such command or model: 'weights'", "did you mean `fmapviz guide weights`?"),
        (["weigths"], "no such command or model: 'weigths'", "did you mean `fmapviz guide weights`?"),
        (["views"], "no such command or model: 'views'", "did you mean `fmapviz guide layers-and-views`?"),
        (["layers", "help"], "no file or model is called 'help'", "`fmapviz layers --help` shows all options"),
        (["alexnet", "help"], "no file or model is called 'help'", "`fmapviz run --help` shows all options"),
        (["help", "lyers"], "no such command or page: 'lyers'", "`fmapviz help layers`"),
        (["resnet19"], "no such command or model: 'resnet19'", "'resnet18'"),
        (["nonsense"], "no such command or model: 'nonsense'", "`fmapviz --help` lists the commands"),
        (["nonsense", "x.png"], "no such model: 'nonsense'", "`fmapviz models`"),
        (
            ["p q.jpg", "shapesnet"],
            "no such command or model: 'p q.jpg'",
            "the model comes first: `fmapviz shapesnet 'p q.jpg'`",
        ),
        (["/", "a.png", "alexnet"], "no such command or model: '/'", "the model comes first: `fmapviz alexnet / a.png`"),
        (["fmapviz", "shapesnet", "a.png"], "no such command", "fmapviz is the command itself: `fmapviz shapesnet a.png`"),
        (["shapesnet", "a.png", "-q", "-v"], "--quiet and --verbose exclude each other", "pass one of them"),
        (["photo.jpg"], "no such command or model: 'photo.jpg'", "the model comes first: `fmapviz MODEL photo.jpg`"),
        (["--verison"], "no such option: '--verison'", "did you mean `fmapviz --version`, without a model?"),
        (["--hlep"], "no such option: '--hlep'", "did you mean --help?"),
        (["alexnet", "x.png", "--no-lables"], "no such option: '--no-lables'", "--no-labels"),
        (["verify", "runs", "--verison"], "no such option", "did you mean `fmapviz --version`, without a command?"),
        (["runs/best.torchscript", "x.png"], "not a PyTorch model, but a TorchScript file", "best.pt"),
        (["model.onnx", "x.png"], "not a PyTorch model, but an ONNX file: 'model.onnx'", "it was exported from"),
        (["layers", "plain.pth"], "no such file: 'plain.pth'", "no similar name in"),
        (
            ["google/vit-base-patch16-224", "x.png"],
            "'google/vit-base-patch16-224' looks like a name of the Hugging Face hub",
            "type hf:google/vit-base-patch16-224",
        ),
        (["timm/vit_tiny.x", "x.png"], "looks like a name of the Hugging Face hub", "type timm:vit_tiny.x"),
        (["alexnet", "x.png", "--mean", "128"], "mean must be at most 1: '128'", "divided by 255 it is 0.502"),
        (["alexnet", "x.png", "--std", "58.395,57"], "std must be at most 1: '58.395,57'", "it is 0.229,0.224"),
        (["alexnet(num_classes", "x.png"], "invalid arguments: '(num_classes'", ""),
        (["alexnet\x1b[31m", "x.png"], r"no such model: 'alexnet\x1b[31m'", ""),
    )
    WRONG_VALUES = (
        (["alexnet", "x.png", "--to", "tensorbord"], "no such format: 'tensorbord'", "'tensorboard'"),
        (["alexnet", "x.png", "--channels", "x"], "no such channels: 'x'", "top:16"),
        (["alexnet", "x.png", "--size", "1x"], "no such size: '1x'", "HEIGHTxWIDTH"),
        (["alexnet", "x.png", "--fit", "fill"], "no such fit: 'fill'", "squash"),
        (["alexnet", "x.png", "--columns", "many"], "for '--columns'", ""),
        (["alexnet", "x.png", "--out", ""], "--out is empty", ""),
        (["alexnet", "x.png", "--to", ""], "a list without names", ""),
        (["alexnet", "x.png", "--to", "PGN"], "no such format: 'PGN'", "'png'"),
        (["alexnet", "x.png", "--norm", "fixed:-1e308,1e308"], "no such norm", ""),
        (["alexnet", "x.png", "--columns", "0"], "columns must be at least 1", ""),
        (["alexnet", "x.png", "--shard", "0"], "shard must be 1 to 100000 images: '0'", ""),
        (
            ["alexnet", "x.png", "--shard", "9", "--to", "png"],
            "the format 'png' does not support shards",
            "tar, tensorboard",
        ),
        (["alexnet", "x.png", "--part", "5/4"], "no such part: '5/4'", "1/4"),
        (["alexnet", "x.png", "--part", "1"], "no such part: '1'", "1/4"),
    )
    RIGHT = (
        (["--help"], "MODEL INPUT"),
        (["--version"], "fmapviz 0."),
        (["--help"], "fmapviz guide"),
        (["run", "--help"], "--batch-size"),
        (["run", "--help"], "the run's directory is a"),
        (["run", "--help"], "fmapviz guide"),
        (["models", "vgg"], "vgg11"),
    )

    @pytest.fixture
    def answer(self, command_line_alone):
        """Run the command and check at its exit that torch was not imported."""

        def run(*args, env=None):
            code = (
                "import sys, atexit\n"
                "atexit.register(lambda: sys.modules.get('torch') and print('TORCH', file=sys.stderr))\n"
                f"sys.argv = ['fmapviz', *{list(args)!r}]\n"
                "from fmapviz.cli.app import main\nmain()"
            )
            result = command_line_alone(code, env=env)
            assert b"TORCH" not in result.stderr
            return result

        return run

    def test_help_and_lists_import_no_torch(self):
        """The others have a process that has imported the command line already."""
        code = "import sys; from fmapviz.cli import app; print('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(("args", "error", "hint"), [*WRONG, *thorough(*WRONG_VALUES)])
    def test_a_wrong_word_is_exit_2_with_the_word_and_its_nearest_matches(self, answer, args, error, hint):
        result = answer(*args)
        assert result.returncode == 2
        assert not result.stdout
        first, *more = lines(result.stderr)
        assert first.startswith("error: ")
        assert error in first
        assert hint in " ".join(more)
        assert all(line.startswith("hint: ") for line in more)

    def test_a_file_that_begins_with_a_dash_is_no_option(self, answer, tmp_path):
        for name in ("-leading dash.jpg", "-q.jpg"):
            (tmp_path / name).touch()
            error, hint = lines(answer("alexnet", "a.jpg", name).stderr)
            assert error == f"error: the name of a file begins with a dash: '{name}'"
            assert "put -- before the files" in hint
            assert shlex.quote(f"./{name}") in hint

    @pytest.mark.parametrize(("args", "text"), RIGHT)
    def test_help_and_lists_are_printed(self, answer, args, text):
        result = answer(*args, env={"COLUMNS": "120"})
        assert (result.returncode, result.stderr) == (0, b"")
        assert text in result.stdout.decode()

    @pytest.mark.parametrize("width", [80, 120])
    def test_help_keeps_words_whole_and_lists_options_by_use(self, answer, width):
        shown = answer("run", "--help", env={"COLUMNS": str(width)}).stdout.decode()
        assert max(map(len, shown.splitlines())) <= width
        assert len(shown.splitlines()) < 265
        assert not re.search(r"<\w+>|\x1b|`", shown)
        run = __import__("typer").main.get_command(app).commands["run"]
        for option in (each for each in run.params if each.opts[0].startswith("--")):
            assert re.search(
                rf"^  .*{option.opts[0]}\b{'' if option.is_flag else f' {re.escape(option.metavar)}'}", shown, re.M
            )
        headings = [
            "Arguments",
            "Most used",
            "Layers and classes",
            "Looks",
            "Input preparation",
            "Storing",
            "Running",
            "Ray",
        ]
        assert [line for line in shown.splitlines() if line[:1] not in {"", " "}][-11:-3] == headings
        views = re.findall(r"^  ([a-z+-]+) ", shown.partition("Values of --view")[2].partition("Values of --to")[0], re.M)
        assert views[:2] == ["maps", "inputs"]
        assert sorted(views) == [name for name in registry.views() if name != "diff"]  # which has a command of its own

    @pytest.mark.thorough
    def test_a_wrong_command_writes_no_files(self, tmp_path):
        subprocess.run([sys.executable, "-m", "fmapviz", "alexnt", "x.png"], cwd=tmp_path, capture_output=True, check=False)
        assert not list(tmp_path.iterdir())


class TestCommandLine:
    """`fmapviz MODEL INPUT...` is short for `fmapviz run MODEL INPUT...`, with options in any position."""

    @pytest.mark.parametrize(
        "args",
        [
            "run alexnet x.png --out r",
            "alexnet x.png --out r",
            "--out r alexnet x.png",
            "--out r run alexnet x.png",
            "--out=r alexnet x.png",
            "alexnet --out r x.png",
        ],
    )
    def test_run_is_the_default_command(self, args):
        group = __import__("typer").main.get_command(app)
        with group.make_context("fmapviz", args.split()) as context:
            words = [*context._protected_args, *context.args]
        assert words[0] == "run"
        with group.commands["run"].make_context("run", words[1:]) as command:
            assert command.params["model"] == "alexnet"
            assert [*command.params["inputs"]] == ["x.png"]
            assert str(command.params["out"]) == "r"

    @pytest.mark.parametrize("args", ["--json layers alexnet", "layers alexnet --json", "layers --json alexnet"])
    def test_other_commands_take_options_before_them_too(self, args):
        group = __import__("typer").main.get_command(app)
        with group.make_context("fmapviz", args.split()) as context:
            assert context._protected_args == ["layers"]

    def test_no_model_has_the_name_of_a_command(self):
        group = __import__("typer").main.get_command(app)
        assert not set(model_names()) & set(group.commands)

    def test_every_command_is_suggested(self):
        assert set(commands()) == set(__import__("typer").main.get_command(app).commands)

    def test_options_of_lists_may_be_repeated_or_separated_by_commas(self):
        assert options.split(["a,b", "c", "a"]) == ("a", "b", "c")
        assert options.split(["a[1,2].*,b", "c[!],d]"]) == ("a[1,2].*", "b", "c[!],d]")


class TestRun:
    def test_results_on_standard_output_and_the_rest_on_standard_error(self, fmapviz, folder, tmp_path):
        (folder / "bad.jpg").write_text("no picture")
        result = fmapviz("squeezenet1_1", folder, *SMALL, "--out", "my runs", "--to", "png,tensorboard")
        assert result.returncode == 3
        assert lines(result.stdout) == ["my runs/squeezenet1_1", "tensorboard --logdir 'my runs'"]
        assert "[E_FORMAT]" in result.stderr.decode()
        assert "4 images: 3 done, 1 failed; 26 layers, 81 pictures" in result.stderr.decode()
        assert b"\r" not in result.stderr
        run = tmp_path / "my runs" / "squeezenet1_1"
        assert {path.parent.relative_to(run).as_posix() for path in run.rglob("unit.json")} == {
            "img2.png", "img10.png", "sub/img1.png",
        }  # fmt: skip
        again = fmapviz("squeezenet1_1", folder, *SMALL, "--out", "my runs", "--to", "png,tensorboard", "--json")
        assert again.returncode == 3
        events = objects(again.stdout)
        assert [event["event"] for event in events] == ["run", "image", "image", "image", "image", "summary"]
        assert sorted(event["status"] for event in events[1:-1]) == ["failed", "skipped", "skipped", "skipped"]
        assert events[-1]["exit_code"] == 3
        assert events[-1]["found"] == 4
        checked = fmapviz("verify", "my runs")
        assert checked.returncode == 0
        picture = next(run.rglob("00_*.png"))
        picture.write_bytes(picture.read_bytes()[:-1])
        damaged = fmapviz("verify", "my runs")
        assert damaged.returncode == 3
        assert str(picture.relative_to(tmp_path)) in damaged.stdout.decode()

    @pytest.mark.thorough
    def test_settings_never_mix_and_a_name_in_use_is_refused(self, fmapviz, picture, tmp_path):
        run = ("squeezenet1_1", picture, *SMALL, "--layers", "features.0", "--to", "png", "--out", "r")
        assert fmapviz(*run).returncode == 0
        other = fmapviz(*run, "--scale", "2")
        assert lines(other.stdout)[0] == "r/squeezenet1_1-2"
        notice = "notice: r/squeezenet1_1 holds a run with other settings (scale: 1, not 2); this run is r/squeezenet1_1-2"
        assert notice in lines(other.stderr)
        refused = fmapviz(*run, "--scale", "3", "--name", "squeezenet1_1")
        assert refused.returncode == 6
        assert lines(refused.stderr) == [
            "error: 'r/squeezenet1_1' holds a run with other settings (scale: 1, not 3)",
            "hint: choose another --name, or none for a free one",
        ]
        assert not (tmp_path / "r" / "squeezenet1_1-3").exists()

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize(
        ("args", "code", "message"),
        [
            (["alexnet", "picture.png"], 2, "error: cannot download 'https://"),
            (["squeezenet1_1", "picture.png", *SMALL, "--layers", "features.99"], 2, "no layer matches 'features.99'"),
            (["squeezenet1_1", "picture.png", *SMALL, "--types", "Convolution"], 2, "no layer of this type"),
            (["squeezenet1_1", "picture.png", *SMALL, "--device", "cuda:77"], 2, "no such device here: 'cuda:77'"),
            (["squeezenet1_1", "empty", *SMALL], 4, "no image among the inputs"),
            (["squeezenet1_1", "pictrue.png", *SMALL], 4, "hint: did you mean 'picture.png'?"),
            (["squeezenet1_1", "picture.png", *SMALL, "--out", "picture.png"], 5, "not a directory"),
            (["verify", "empty"], 2, "no run of fmapviz: 'empty'"),
        ],
    )
    @pytest.mark.usefixtures("picture")
    def test_exit_codes_follow_the_outcome(self, fmapviz, tmp_path, args, code, message):
        (tmp_path / "empty").mkdir()
        result = fmapviz(*args, "--json")
        assert result.returncode == code, result.stderr
        assert message in result.stderr.decode()
        summary = objects(result.stdout)[-1]
        assert (summary["event"], summary["exit_code"]) == ("summary", code)
        if code in {2, 4}:
            assert not (tmp_path / "runs").exists(), "nothing was written"

    def test_weights_that_cannot_be_downloaded_hint_at_alternatives(self, fmapviz, picture, tmp_path):
        error, hint = lines(fmapviz("alexnet", picture).stderr)
        assert "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth" in error
        for way in (str(tmp_path / "torch_home"), "alexnet-owt-7be5be79.pth", "--weights FILE", "--weights random"):
            assert way in hint

    def test_a_video_model_is_listed_by_its_conv3d_layers_with_a_notice(self, fmapviz):
        result = fmapviz("layers", "r3d_18")
        assert "Conv3d" in lines(result.stderr)[0]
        assert len(lines(result.stdout)) == 21

    @pytest.mark.thorough
    def test_a_transformer_is_listed_with_a_notice_about_its_blocks(self, fmapviz):
        result = fmapviz("layers", "vit_b_32")
        notice, total = lines(result.stderr)
        blocks = (
            "notice: vit_b_32 has 1 Conv2d and 12 blocks, EncoderBlock: both are drawn; --types Conv2d leaves out the blocks"
        )
        assert notice.replace("`", "") == blocks
        assert total == "vit_b_32: 88,224,232 parameters (353 MB), 4,409,186,304 MACs"
        assert len(lines(result.stdout)) == 14

    def test_layers_prints_a_table(self, fmapviz):
        table = lines(fmapviz("layers", "googlenet").stdout)
        assert table[0].split() == ["#", "layer", "type", "output", "axes", "parameters", "calls", "MACs"]
        assert table[1].split() == [
            "0",
            "conv1.conv",
            "Conv2d",
            "64",
            "x",
            "112",
            "x",
            "112",
            "N",
            "C",
            "H",
            "W",
            "9,408",
            "1",
            "118,013,952",
        ]
        assert len(table) == 60
        assert ["not" in line for line in table].count(True) == 2
        rows = objects(fmapviz("layers", "googlenet", "--json", "--layers", "aux*").stdout)
        assert [row["shape"] for row in rows[:-1]] == [None, None]
        assert rows[-1] == {
            "event": "summary", "model": "googlenet", "layers": 2, "executed": 0, "parameters": 13004888,
            "parameter_bytes": 4 * 13004888, "macs": 1498376192, "outputs": {}, "exit_code": 0,
        }  # fmt: skip

    @pytest.mark.thorough
    def test_code_that_imports_parts_of_the_compiler_can_be_listed(self, tmp_path):
        """Hugging Face's transformers do; models of torchvision are listed without the compiler, which is faster."""
        code = "from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex\nimport torch.nn as nn"
        (tmp_path / "net.py").write_text(f"{code}\nnet = nn.Conv2d(3, 4, 3)\nnet = nn.Sequential(net)")
        listed = subprocess.run(
            [sys.executable, "-m", "fmapviz", "layers", "net.py:net"], cwd=tmp_path, capture_output=True, check=False
        )
        assert listed.returncode == 0, listed.stderr
        assert lines(listed.stdout)[1].split()[1:3] == ["0", "Conv2d"]


class TestStreams:
    def test_a_list_on_standard_input_is_processed_as_it_arrives(self, folder, begin):
        names = [folder / "img2.png", folder / "img10.png"]
        with begin("squeezenet1_1", "-", "-0", *SMALL, "--to", "png", "--json") as begun:
            for name in names:
                begun.stdin.write(os.fsencode(name) + b"\0")
                begun.stdin.flush()
                while (event := json.loads(begun.stdout.readline()))["event"] != "image":
                    pass
                assert (event["path"], event["status"]) == (str(name), "done")
            begun.stdin.close()
            assert json.loads(begun.stdout.readline())["found"] == 2
            assert begun.process.wait(PATIENCE) == 0

    @pytest.mark.thorough
    def test_standard_input_is_not_read_without_a_dash(self, tmp_path):
        script = f'printf "a\\nb\\n" | while read line; do {sys.executable} -m fmapviz models alexnet; done'
        result = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=True)
        assert lines(result.stdout) == ["alexnet", "alexnet"]

    @pytest.mark.thorough
    def test_help_ends_quietly_with_a_closed_pipe(self):
        script = f"{sys.executable} -m fmapviz run --help | head -1; exit ${{PIPESTATUS[0]}}"
        assert subprocess.run(["bash", "-c", script], capture_output=True, check=False).returncode == 0

    def test_standard_input_that_cannot_be_read_is_an_error(self, warm, tmp_path):
        arguments = ["squeezenet1_1", "-", "--weights", "random"]
        with (tmp_path / "stdin").open("wb") as stdin, (tmp_path / "stderr").open("wb") as stderr:  # for writing only
            process = start_process(warm, arguments, directory=tmp_path, streams=[stdin.fileno(), 1, stderr.fileno()])
            assert process.wait(PATIENCE) == 2
        printed = lines((tmp_path / "stderr").read_bytes())
        assert printed[0] == "error: cannot read paths from standard input: Bad file descriptor"

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("redirection", "code", "error"),
        [
            ("| head -1", 0, b""),
            (">&-", 0, b""),
            ("2>&-", 0, b""),
            (">/dev/full", 5, b"error: cannot write to standard output"),
        ],
    )
    def test_closed_and_full_standard_streams_are_handled(self, tmp_path, redirection, code, error):
        script = f"set -o pipefail; {sys.executable} -m fmapviz models {redirection}"
        result = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False)
        assert result.returncode == code
        assert result.stderr.partition(b":")[0] == error.partition(b":")[0]
        assert error in result.stderr

    @pytest.mark.thorough
    def test_odd_names_are_escaped_in_a_poor_terminal(self, fmapviz, tmp_path):
        name = "ä\x1b[31m\n\u202e.png"
        save_picture(tmp_path / "odd" / name)
        (tmp_path / "odd" / "\udcff.jpg").write_bytes(b"no picture")
        result = fmapviz(
            "squeezenet1_1", "odd", *SMALL, "-v", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        )
        assert result.returncode == 3
        for stream in (result.stdout, result.stderr):
            assert b"\x1b" not in stream
            assert "\u202e".encode() not in stream
        events = objects(fmapviz("squeezenet1_1", "odd", *SMALL, "--json").stdout)
        assert {event["path"] for event in events if event["event"] == "image"} == {
            str(tmp_path / "odd" / name), str(tmp_path / "odd" / "\udcff.jpg"),
        }  # fmt: skip

    def test_a_terminal_shows_a_progress_bar(self, warm, folder, tmp_path):
        for seed in range(40):
            save_picture(folder / f"more{seed}.png", seed)
        shown = in_terminal(warm, ["squeezenet1_1", str(folder), *SMALL, "--to", "png"], tmp_path)
        assert shown.startswith(f"loading squeezenet1_1 ...{ERASE}")
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        assert re.search(r"\d+/43 images\s+[\d.]+ images/s", shown)
        assert "43 images done: 26 layers" in shown

    @pytest.mark.parametrize(
        ("args", "status"),
        [
            (["shapesnet", "picture.png"], "loading shapesnet ..."),
            *thorough((["layers", "shapesnet"], "loading shapesnet ...")),
            *thorough((["shapesnet", "picture.png", "--plan"], "loading shapesnet to draw a sample ...")),
            *thorough((["shapesnet", "picture.png", "--quiet"], "")),
            *thorough((["shapesnet", "-"], "")),  # it is told what to draw in the terminal
        ],
    )
    @pytest.mark.usefixtures("picture")
    def test_a_terminal_shows_a_status_before_torch_is_imported(self, tmp_path, monkeypatch, args, status):
        (tmp_path / "torch.py").write_text("import os; os.write(2, b'(import)'); raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        shown = in_terminal(OFF, args, tmp_path, code=2, all_streams=True)
        assert shown.startswith(f"{status}(import)")
        assert shown.partition("(import)")[2].startswith(
            f"{ERASE if status else ''}error: PyTorch and torchvision cannot be"
        )

    @pytest.mark.thorough
    @pytest.mark.usefixtures("picture")
    def test_a_status_line_is_replaced_by_the_next_output(self, fmapviz, warm, tmp_path):
        assert fmapviz("shapesnet", "picture.png", "--to", "png").returncode == 0
        sound = "2 directories, 10 files: all complete and unchanged"
        shown = in_terminal(warm, ["verify", "runs"], tmp_path, all_streams=True)
        assert shown.startswith(f"checking runs ...{ERASE}{sound}\r\nsha256:")
        (tmp_path / "net.py").write_text(
            "import torch\n\ndef net():\n    print('hello')\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5))\n"
        )
        assert in_terminal(warm, ["layers", "net.py:net"], tmp_path) == (
            f"loading net.py:net ...{ERASE}hello\r\nnet.py:net: 304 parameters (1.22 kB), 14,520,000 MACs\r\n"
        )
        assert in_terminal(warm, ["verify", "runs"], tmp_path, environment={"TERM": "dumb"}) == ""


class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), *thorough((signal.SIGTERM, 143))])
    def test_a_signal_leaves_complete_directories_and_the_same_command_resumes(self, fmapviz, begin, tmp_path, number, code):
        for seed in range(30):
            save_picture(tmp_path / "many" / f"{seed}.png", seed)
        args = ["squeezenet1_1", "many", *SMALL, "--to", "png", "--json"]
        with begin(*args) as begun:
            while json.loads(begun.stdout.readline())["event"] != "image":
                pass
            begun.process.send_signal(number)
            output, errors = begun.stdout.read(), begun.stderr.read()
            assert begun.process.wait(PATIENCE) == code, errors
        interrupted = re.fullmatch(r"interrupted: (\d+)( of 30)? done; run the same command to resume", lines(errors)[-1])
        assert len(lines(errors)) == 1
        check_lines(args, output, code=code)
        run = tmp_path / "runs" / "squeezenet1_1"
        assert not list(run.glob(".*")), "nothing staged is left"
        assert fmapviz("verify", "runs").returncode == 0
        summary = objects(fmapviz(*args).stdout)[-1]
        assert summary["done"] + summary["skipped"] == 30
        assert summary["skipped"] >= int(interrupted[1]) >= 1

    def test_waiting_for_standard_input_ends_at_once(self, begin, picture):
        with begin("squeezenet1_1", "-", *SMALL, "--json") as begun:
            begun.stdin.write(os.fsencode(picture) + b"\n")
            begun.stdin.flush()
            while json.loads(begun.stdout.readline())["event"] != "image":
                pass
            begun.process.send_signal(signal.SIGINT)
            assert begun.process.wait(PATIENCE) == 130
            assert lines(begun.stderr.read())[-1] == "interrupted: 1 done; run the same command to resume"


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["shapesnet", "x.png"], *thorough(["layers", "alexnet"])], ids=" ".join)
def test_a_broken_torch_is_reported_in_one_line(fmapviz, tmp_path, arguments):
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: failed to map\\nand more')")
    ended = fmapviz(*arguments, env={"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == 2
    printed = ended.stderr.decode().splitlines()
    assert printed[0] == "error: PyTorch and torchvision cannot be imported: ImportError: libtorch_cpu.so: failed to map"
    assert printed[1].startswith("hint: try python -c 'import torch, torchvision'")
    assert len(printed) == 2


def test_a_mismatched_torchvision_is_reported_and_internal_import_errors_are_not_caught(monkeypatch):
    with pytest.raises(ImportError, match="ours"), importing():
        raise ImportError("ours")
    monkeypatch.delitem(sys.modules, "torchvision")
    with pytest.raises(RequestError, match="RuntimeError: operator torchvision::nms does not exist"), importing():
        raise RuntimeError("operator torchvision::nms does not exist")


def test_a_process_exits_after_printing_and_after_every_exit_function():
    """The interpreter is not finalized, but functions registered with `atexit` are called."""
    program = (
        "import atexit; from fmapviz.cli.process import exit_now; atexit.register(print, 1); print('printed'); exit_now(7)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split(), result.stderr) == (7, ["printed", "1"], "")
