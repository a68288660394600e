"""Weights of all sources: never others than requested, and no code is run."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import urllib.request
import warnings
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from cases import thorough
from checkpoint_files import (
    Malice,
    Wrapped,
    assert_holds,
    build,
    constant,
    poisoned_memory,
    renamed,
    shapes_of,
    without_counts,
)
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from waiting import PATIENCE, without_hanging

from fmapviz.config import InputOptions
from fmapviz.errors import RequestError, WeightsError
from fmapviz.models.load import load_model
from fmapviz.models.weights import download
from fmapviz.models.weights.download import CONNECT_SECONDS
from fmapviz.models.weights.fit import load_state_dict
from fmapviz.models.weights.state_dict import digest_of_state

NAME = "shufflenet_v2_x0_5"  # small, with batch norms and so with buffers


@pytest.fixture(scope="module")
def network():
    return build(NAME)


@pytest.fixture(scope="module")
def state(network):
    return network.state_dict()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and no network but this computer."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    go_through(monkeypatch, port)
    monkeypatch.setattr(download, "CONNECT_SECONDS", float(PATIENCE))  # a server of the test may be slow to answer
    directory = tmp_path / "torch_home/hub/checkpoints"
    directory.mkdir(parents=True)
    yield directory
    urllib.request.install_opener(None)


def go_through(monkeypatch, port):
    """Send requests for the wide world to a port of this computer."""
    for scheme in ("http", "https"):
        for variable in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1,localhost")
    urllib.request.install_opener(None)  # the next request looks at the environment again


@pytest.fixture
def save_bytes(tmp_path):
    def write(content, name="weights.pth"):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def load(weights, name=NAME, **options):
    with poisoned_memory():
        return load_model(name, weights=str(weights), preprocessing=InputOptions(**options))


def refusal(weights, name=NAME):
    """Return the message and the hint about weights that cannot be loaded."""
    with pytest.raises(WeightsError) as caught:
        load_model(name, weights=str(weights))
    assert caught.value.exit_code == 2
    assert "\n" not in f"{caught.value}{caught.value.hint}"
    return str(caught.value), caught.value.hint or ""


def url_of(name, entry="DEFAULT"):
    return models.get_model_weights(name)[entry].url


def published_file(cache, name, entry="DEFAULT"):
    """Say where torchvision looks for a downloaded file."""
    return cache / url_of(name, entry).rpartition("/")[2]


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# Published weights, from torch's cache


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weights", ["default", "IMAGENET1K_V1", "DEFAULT"])
def test_published_weights_come_from_torchs_cache(weights, cache, state):
    torch.save(state, published_file(cache, NAME))
    model = load(weights)
    assert_holds(model.module, state)
    assert model.weights == "IMAGENET1K_V1"
    assert model.label == f"{NAME} (IMAGENET1K_V1)"
    assert model.sha256 == sha256(published_file(cache, NAME))
    assert model.notices == ()
    assert not model.module.training


@pytest.mark.thorough
def test_published_weights_are_those_of_the_requested_entry(cache):
    first, second = build("mobilenet_v3_large"), build("mobilenet_v3_large", num_classes=1000, dropout=0.1)
    second.classifier[0].weight.data += 1
    torch.save(first.state_dict(), published_file(cache, "mobilenet_v3_large", "IMAGENET1K_V1"))
    torch.save(second.state_dict(), published_file(cache, "mobilenet_v3_large", "IMAGENET1K_V2"))
    one, other, best = (load(weights, "mobilenet_v3_large") for weights in ("IMAGENET1K_V1", "IMAGENET1K_V2", "default"))
    assert_holds(one.module, first.state_dict())
    assert_holds(other.module, second.state_dict())
    assert_holds(best.module, second.state_dict())
    assert (one.weights, other.weights, best.weights) == ("IMAGENET1K_V1", "IMAGENET1K_V2", "IMAGENET1K_V2")
    assert one.sha256 != other.sha256 == best.sha256
    assert one.preparation.description != other.preparation.description  # resized to 256, or to 232


@pytest.mark.thorough
def test_quantized_models_take_the_weights_that_are_not_quantized(cache):
    state = build("mobilenet_v2").state_dict()
    path = published_file(cache, "mobilenet_v2", "IMAGENET1K_V1")
    torch.save(state, path)
    for weights in ("default", "IMAGENET1K_V1"):
        model = load(weights, "quantized_mobilenet_v2")
        assert_holds(model.module, state)
        assert (model.weights, model.sha256) == ("IMAGENET1K_V1", sha256(path))
    message, hint = refusal("IMAGENET1K_QNNPACK_V1", "quantized_mobilenet_v2")
    assert "IMAGENET1K_QNNPACK_V1" in message
    assert "IMAGENET1K_V1" in hint


@pytest.mark.thorough
def test_published_weights_are_loaded_as_by_torchvision(cache, monkeypatch):
    """GoogLeNet's come with heads that are cut off and want inputs transformed in the network; a detector's are frozen."""
    googlenet, path = build("googlenet"), published_file(cache, "googlenet")
    torch.save(googlenet.state_dict(), path)
    model = load("default", "googlenet")
    module = model.module
    assert module.transform_input
    assert not model.notices
    assert module.aux1 is None
    expected = {key: values for key, values in googlenet.state_dict().items() if not key.startswith("aux")}
    assert_holds(module, expected)
    # The same file, given as a file, is known by its digest.
    entry = models.get_model_weights("googlenet").DEFAULT
    monkeypatch.setattr(entry.value, "url", f"https://x/googlenet-{sha256(path)[:8]}.pth")
    model = load(path, "googlenet")
    assert model.module.transform_input
    assert not model.notices

    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    state = without_counts(build(name).state_dict())
    torch.save(state, published_file(cache, name))
    module = load("default", name).module
    assert_holds(module, state)
    assert type(module.backbone.body["0"][1]).__name__ == "FrozenBatchNorm2d"


@pytest.mark.thorough
def test_segmentation_weights_include_their_second_head(cache):
    name = "deeplabv3_mobilenet_v3_large"
    state = build(name, aux_loss=True).state_dict()
    torch.save(state, published_file(cache, name))
    assert_holds(load("default", name).module, state)


@pytest.mark.thorough
def test_an_old_file_of_densenet_is_read_as_published_and_as_a_file(cache):
    state = build("densenet121").state_dict()
    older = without_counts({key.replace("norm1.", "norm.1.").replace("norm2.", "norm.2.").replace("conv1.", "conv.1.")
                            .replace("conv2.", "conv.2."): values for key, values in state.items()})  # fmt: skip
    assert "features.denseblock1.denselayer1.norm.1.weight" in older
    path = published_file(cache, "densenet121")
    torch.save(older, path)
    expected = {key: torch.tensor(0) if key.endswith("_tracked") else values for key, values in state.items()}
    assert_holds(load("default", "densenet121").module, expected)
    assert_holds(load(path, "densenet121").module, expected)


def test_a_damaged_file_in_the_cache_is_named_with_the_remedy(cache, state):
    path = published_file(cache, NAME)
    torch.save(state, path)
    path.write_bytes(path.read_bytes()[:-1000])
    message, hint = refusal("default")
    assert str(path) in message
    assert "delete" in hint


@pytest.mark.thorough
def test_a_file_in_the_cache_that_does_not_fit_is_an_error(cache, state):
    path = published_file(cache, NAME)
    torch.save({**state, "fc.bias": torch.zeros(10)}, path)
    message, _ = refusal("default")
    assert str(path) in message
    assert "fc.bias is (10), not (1000)" in message


@pytest.mark.thorough
@pytest.mark.parametrize("nested", [False, True])
def test_malice_in_the_cache_is_refused_and_does_not_run(nested, cache, state, tmp_path):
    malice = Malice(tmp_path / "marker")
    torch.save({**state, "fc.bias": malice} if nested else malice, published_file(cache, NAME))
    message, _ = refusal("default")
    assert "refused" in message
    assert str(published_file(cache, NAME)) in message
    assert not (tmp_path / "marker").exists()


# Published weights that cannot be had


def test_weights_that_are_neither_cached_nor_reachable_are_an_error(cache):
    message, hint = refusal("default")
    assert url_of(NAME) in message
    assert "refused" in message  # the connection: no time limit was reached
    assert str(published_file(cache, NAME)) in hint
    assert "weights=FILE" in hint
    assert "weights='random'" in hint
    assert list(cache.iterdir()) == []


@pytest.mark.thorough  # a server that accepts and says nothing is given up in the same way
def test_a_silent_name_server_is_given_up_soon(tmp_path):
    """`getaddrinfo` has no timeout of its own: resolvers ask each name server several times, 5 s each."""
    code = f"""
import socket, time
socket.getaddrinfo = lambda *args, **kwargs: time.sleep({10 * PATIENCE})
from fmapviz.models.load import load_model
from fmapviz.errors import WeightsError
try:
    load_model("alexnet")
except WeightsError as error:
    print(error.hint)
"""
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {"TORCH_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.startswith("put the file at")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.thorough
def test_a_silent_server_is_given_up_soon(cache, monkeypatch):
    assert CONNECT_SECONDS < 10
    monkeypatch.setattr(download, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        go_through(monkeypatch, silent.getsockname()[1])
        message, hint = without_hanging(lambda: refusal("default"))
    assert url_of(NAME) in message
    assert "no answer within 1 s" in message or "timed out" in message
    assert str(published_file(cache, NAME)) in hint
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("weights", "nearest"),
    [
        ("IMAGENET1K_V2", "did you mean 'IMAGENET1K_V1'?"),
        ("IMAGENET_V1", "did you mean 'IMAGENET1K_V1'?"),
        ("imagenet1k_v1", "did you mean 'IMAGENET1K_V1'?"),
        ("COCO", "there are: IMAGENET1K_V1, default and random"),
        ("RANDOM", "default and random"),
    ],
)
def test_an_unknown_entry_is_an_error_with_the_nearest_ones(weights, nearest):
    message, hint = refusal(weights)
    assert f"'{weights}'" in message
    assert nearest in hint


# Weights from a URL


class _Handler(BaseHTTPRequestHandler):
    """Serves a few files, and does not support HEAD."""

    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path.partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content[: self.server.cut])
        except OSError:
            self.close_connection = True  # whoever asked has seen enough

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as web:
        web.files, web.requests, web.cut = {}, [], None
        web.url = f"http://127.0.0.1:{web.server_port}"
        thread = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield web
        web.shutdown()
        thread.join()


def test_weights_from_a_url_are_downloaded_once(server, save, state, cache):
    path = Path(save(state))
    server.files["/nets/weights.pth"] = path.read_bytes()
    for _ in range(2):
        model = load(f"{server.url}/nets/weights.pth?download=1")
        assert_holds(model.module, state)
        assert model.sha256 == sha256(path)
        asked = len(server.requests)
    assert len(server.requests) == asked
    server.shutdown()
    assert [entry.read_bytes() for entry in cache.iterdir()] == [path.read_bytes()]
    assert model.weights == next(cache.iterdir()).name


@pytest.mark.thorough
def test_an_entry_of_a_file_from_a_url_is_loaded(server, save, state, cache):
    path = Path(save({"model": {key: values + 1 for key, values in state.items()}, "ema": state}))
    server.files["/nets/weights.pth"] = path.read_bytes()
    model = load(f"{server.url}/nets/weights.pth#ema")
    assert_holds(model.module, state)
    (cached,) = cache.iterdir()
    assert model.weights == f"{cached.name}#ema"
    load(f"{server.url}/nets/weights.pth")
    assert list(cache.iterdir()) == [cached]
    assert server.requests[0] == "/nets/weights.pth"


@pytest.mark.thorough
def test_files_of_one_name_from_several_urls_are_distinguished(server, save, state, cache):
    other = {key: values + 1 for key, values in state.items()}
    for place, content in (("one", state), ("other", other)):
        server.files[f"/{place}/model.pth"] = Path(save(content)).read_bytes()
    save(other)
    (cache / "model.pth").write_bytes(b"of somebody else")
    assert_holds(load(f"{server.url}/one/model.pth").module, state)
    assert_holds(load(f"{server.url}/other/model.pth").module, other)
    assert_holds(load(f"{server.url}/one/model.pth").module, state)


def test_safetensors_from_a_url_are_loaded(server, state, tmp_path):
    save_file(state, tmp_path / "model.safetensors")
    server.files["/model.safetensors"] = (tmp_path / "model.safetensors").read_bytes()
    assert_holds(load(f"{server.url}/model.safetensors").module, state)


@pytest.mark.thorough
def test_weights_from_a_file_url_are_read_again_when_the_file_changes(save, state):
    url = Path(save(state, "my weights.pth")).as_uri()
    assert "%20" in url
    assert_holds(load(url).module, state)
    other = {key: values + 1 for key, values in state.items()}
    save(other, "my weights.pth")
    model = load(url)
    assert_holds(model.module, other)
    assert model.weights == "my weights.pth"
    assert "/nowhere/weights.pth" in refusal("file:///nowhere/weights.pth")[0]


def test_a_download_with_another_digest_than_its_name_is_refused(server, save, state, cache):
    content = Path(save(state)).read_bytes()
    right = hashlib.sha256(content).hexdigest()[:8]
    server.files[f"/net-{right}.pth"] = server.files["/net-0123abcd.pth"] = content
    message, hint = refusal(f"{server.url}/net-0123abcd.pth")
    assert "0123abcd" in message
    assert right in message
    assert "weights=FILE" in hint
    assert list(cache.iterdir()) == []
    assert_holds(load(f"{server.url}/net-{right}.pth").module, state)
    assert [path.name for path in cache.iterdir()] == [f"net-{right}.pth"]


def test_an_interrupted_download_is_refused(server, save, state, cache):
    content = Path(save(state)).read_bytes()
    name = f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    server.files[f"/{name}"] = server.files["/net.pth"] = content
    server.cut = len(content) // 2
    message, _ = refusal(f"{server.url}/{name}")
    assert "cannot download" in message
    assert list(cache.iterdir()) == []
    message, hint = refusal(f"{server.url}/net.pth")  # nothing promises what it should be: found out when it is read
    assert str(cache) in message
    assert "delete it" in hint


def test_a_file_that_the_server_lacks_is_an_error(server, cache):
    message, hint = refusal(f"{server.url}/gone.pth")
    assert f"{server.url}/gone.pth" in message
    assert "404" in message
    assert str(cache) in hint


@pytest.mark.parametrize("reply", [b"\x1b[31mSSH-2.0\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
def test_a_server_that_does_not_speak_http_is_an_error(reply, capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(reply)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        message, _ = refusal(f"http://127.0.0.1:{server.getsockname()[1]}/weights.pth")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "cannot download" in message
    assert "no answer" not in message  # the time limit was not reached
    assert message.isprintable()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/a b.pth", "http://[::1/x.pth", "http://127.0.0.1:99999/x.pth", "https://"]
)
def test_a_malformed_url_is_an_error(url):
    message, _ = refusal(url)
    assert f"'{url}'" in message


def test_a_url_whose_file_name_is_too_long_is_refused(cache):
    for name in ("x" * 300 + ".pth", "x" * 190 + "-0123abcd.pth"):
        assert refusal(f"https://example.com/{name}")[0] == f"the file name is too long: 'https://example.com/{name}'"
    assert refusal(f"file:///{'x' * 300}")[0] == f"no such weights file: '/{'x' * 300}'"
    assert list(cache.iterdir()) == []


def test_a_password_is_not_shown():
    message, hint = refusal("https://somebody:secret@example.com/weights.pth")
    assert message == "cannot download weights from 'example.com' with a user name or password in the URL"
    assert "weights=FILE" in hint


def test_malice_from_a_url_is_refused_and_does_not_run(server, save, tmp_path):
    server.files["/weights.pth"] = Path(save(Malice(tmp_path / "marker"))).read_bytes()
    assert "refused" in refusal(f"{server.url}/weights.pth")[0]
    assert not (tmp_path / "marker").exists()


# Files


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["weights.pth", "weights.pt", "weights.tar", "weights", "my.ckpt", "ä ö\n.pth"])
def test_a_plain_state_dict_is_loaded(name, save, state):
    path = save(state, name)
    model = load(path)
    assert_holds(model.module, state)
    assert model.weights == name
    assert model.sha256 == sha256(path)
    assert model.notices == ()
    assert not model.module.training


def test_a_file_in_the_working_directory_is_loaded(save, state, tmp_path, monkeypatch):
    save(state, "lower")
    monkeypatch.chdir(tmp_path)
    assert_holds(load("lower").module, state)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("nest", ["state_dict", "model", "model_state_dict"])
def test_a_nested_state_dict_of_a_training_is_loaded(nest, save, state):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1, momentum=0.9).state_dict()
    content = {"epoch": 90, "best": 76.5, "arch": NAME, "args": [1, None], "optimizer": optimizer, nest: state}
    assert_holds(load(save(content)).module, state)


def test_the_nested_dictionary_with_a_state_dict_is_loaded(save, state):
    assert_holds(load(save({"model": NAME, "state_dict": {"model": state}})).module, state)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_dictionaries_of_any_type_are_loaded(kind, save, state):
    assert_holds(load(save(kind(state))).module, state)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "prefixes",
    [("module.",), ("_orig_mod.",), ("model.",), ("module.", "_orig_mod."), ("_orig_mod.", "module."), ("model.",) * 2],
)
def test_prefixes_of_wrappers_are_stripped_with_a_notice(prefixes, save, state):
    path = save({"state_dict": {f"{''.join(prefixes)}{key}": values for key, values in state.items()}})
    model = load(path)
    assert_holds(model.module, state)
    (notice,) = model.notices
    assert path in notice
    assert " and ".join(f"'{prefix}'" for prefix in prefixes) in notice


@pytest.mark.thorough
def test_files_of_real_wrappers_are_loaded(network, save, state):
    compiled = torch.compile(network)
    for wrapper in (
        nn.DataParallel(network),
        compiled,
        Wrapped(network),
        nn.DataParallel(Wrapped(network)),
        Wrapped(compiled),
    ):
        wrapped = wrapper.state_dict()
        assert not wrapped.keys() & state.keys()
        model = load(save(wrapped))
        assert_holds(model.module, state)
        assert len(model.notices) == 1


def test_other_prefixes_are_stripped_only_if_the_network_is_under_them(save, state):
    path = save({f"backbone.{key}": values for key, values in state.items()})
    model = load(path)
    assert_holds(model.module, state)
    assert model.notices == (f"stripped the prefix 'backbone.' from the keys of '{path}'",)
    message, _ = refusal(save({f"backbone.{key}": values for key, values in build("squeezenet1_1").state_dict().items()}))
    assert "missing conv1.0.weight" in message
    assert "unexpected backbone.features.0.weight" in message


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
def test_safetensors_are_loaded(prefix, state, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({f"{prefix}{key}": values for key, values in state.items()}, path, metadata={"format": "pt"})
    model = load(path)
    assert_holds(model.module, state)
    assert model.sha256 == sha256(path)
    assert len(model.notices) == bool(prefix)


def test_the_format_before_pytorch_1_6_is_loaded(save, state):
    path = save(state, _use_new_zipfile_serialization=False)
    assert Path(path).read_bytes()[:2] != b"PK"
    assert_holds(load(path).module, state)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_converted_to_that_of_the_network(dtype, save, state):
    other = {key: values.to(dtype) if values.is_floating_point() else values for key, values in state.items()}
    expected = {key: values.to(state[key].dtype) for key, values in other.items()}
    assert_holds(load(save(other)).module, expected)


def test_parameters_and_views_are_read_as_tensors(network, save, state):
    content = dict(network.named_parameters()) | dict(network.named_buffers())
    whole = torch.zeros(20_000)
    content["fc.bias"] = whole[5000:6000].copy_(state["fc.bias"])
    assert_holds(load(save(content)).module, state)


@pytest.mark.thorough
def test_loading_a_file_draws_no_random_numbers(save, state):
    path = save(state)
    before = torch.get_rng_state()
    load(path)
    assert torch.equal(torch.get_rng_state(), before)


# Files of networks that are not quite those that the name builds


@pytest.mark.thorough
@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("name", ["googlenet", *thorough("quantized_googlenet")])
def test_googlenet_is_loaded_with_and_without_its_auxiliary_heads(name, heads, save):
    state = build(name, aux_logits=heads).state_dict()
    assert any(key.startswith("aux") for key in state) == heads
    path = save(state)
    model = load(path, name)
    assert_holds(model.module, state)
    assert model.module.transform_input
    assert any(f"{name}(transform_input=False)" in notice for notice in model.notices)
    other = load(path, f"{name}(transform_input=False)")
    assert_holds(other.module, state)
    assert not other.module.transform_input
    assert not any("transform_input" in notice for notice in other.notices)


@pytest.mark.parametrize(
    ("arguments", "weights", "message"),
    [
        ("num_clases=3", "random", "torchvision cannot build 'squeezenet1_1' with num_clases=3: TypeError"),
        ("num_classes=3", "default", "torchvision cannot build 'squeezenet1_1' with num_classes=3: ValueError"),
        ("weights=None", "random", "squeezenet1_1 takes no argument of this name: 'weights'"),
        ("3", "random", "every argument needs its own name"),
    ],
)
def test_arguments_reach_the_builders_of_torchvision(arguments, weights, message, cache):
    torch.save(build("squeezenet1_1").state_dict(), published_file(cache, "squeezenet1_1"))
    assert load("random", "squeezenet1_1(num_classes=3, dropout=0.1)").module.classifier[1].out_channels == 3
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        load(weights, f"squeezenet1_1({arguments})")
    assert caught.value.hint


def test_wrong_arguments_are_refused_before_weights_are_downloaded(cache, monkeypatch):
    monkeypatch.setattr("fmapviz.models.sources.torchvision.fetch", lambda _: pytest.fail("it is downloaded"))
    with pytest.raises(RequestError, match="cannot build 'squeezenet1_1' with num_clases=3"):
        load("default", "squeezenet1_1(num_clases=3)")


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("heads", [True, False])
def test_a_segmentation_model_is_loaded_with_and_without_its_second_head(heads, save):
    state = build("deeplabv3_mobilenet_v3_large", aux_loss=heads).state_dict()
    assert any(key.startswith("aux_classifier") for key in state) == heads
    assert_holds(load(save(state), "deeplabv3_mobilenet_v3_large").module, state)


@pytest.mark.thorough
def test_a_vision_transformer_of_another_size_under_old_keys_is_loaded(save):
    state = build("vit_b_32", image_size=64).state_dict()
    path = save(renamed(state, (".mlp.0.", ".mlp.linear_1."), (".mlp.3.", ".mlp.linear_2.")))
    model = load(path, "vit_b_32")
    assert_holds(model.module, state)
    assert model.module.image_size == 64
    assert "64x64" in model.preparation.description


@pytest.mark.thorough
def test_a_detector_under_old_keys_is_loaded(save):
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    state = build(name).state_dict()
    older = without_counts(
        renamed(state, *((f"_blocks.{block}.0.", f"_blocks.{block}.") for block in range(2)), (".conv.0.0.", ".conv."))
    )
    assert {"backbone.fpn.inner_blocks.0.weight", "rpn.head.conv.weight"} <= older.keys()
    expected = {key: torch.tensor(0) if key.endswith("_tracked") else values for key, values in state.items()}
    assert_holds(load(save(older), name).module, expected)


def test_files_without_counts_of_batches_are_loaded(save, state):
    expected = {key: torch.tensor(0) if key.endswith("_tracked") else values for key, values in state.items()}
    assert len(without_counts(state)) < len(state)
    assert_holds(load(save(without_counts(state))).module, expected)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_model_that_reads_its_version_has_it(name, tmp_path):
    """MNASNet loads nothing from a file that does not say which version of it wrote it; most files do not."""
    state = build("mnasnet0_5").state_dict()
    assert state._metadata[""] == {"version": 2}
    (save_file if name.endswith(".safetensors") else torch.save)(dict(state), tmp_path / name)
    assert_holds(load(tmp_path / name, "mnasnet0_5").module, state)


# Files that are not what they should be


@pytest.mark.parametrize("zipped", [True, *thorough(False)])
def test_a_file_truncated_anywhere_is_damaged(zipped, save, save_bytes, state):
    whole = Path(save(state, _use_new_zipfile_serialization=zipped)).read_bytes()
    for length in (1, 2, 3, 10, 64, 500, 5000, len(whole) // 3, len(whole) - 5000, len(whole) - 50, len(whole) - 1):
        message, hint = refusal(save_bytes(whole[:length]))
        assert message.startswith("cannot read '"), length
        assert message.endswith("damaged, truncated or not a checkpoint"), length
        assert "delete it" in hint


def test_truncated_safetensors_are_damaged(state, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(state, path)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        message, hint = refusal(path)
        assert message.startswith(f"cannot read '{path}'"), length
        assert message.endswith("it is an empty file") == (length == 0)
        assert "delete it" in hint


@pytest.mark.sampled
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, this is no checkpoint\n" * 100,
        b"<!DOCTYPE html><html><body>403 Forbidden</body></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 100\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        bytes(1000),
        b"PK\x05\x06" + bytes(18),
        struct.pack("<Q", 1 << 60) + b"{}",
    ],
)
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_of_another_kind_is_refused(content, name, save_bytes):
    path = save_bytes(content, name)
    assert refusal(path)[0].startswith(f"cannot read '{path}'")


def test_directories_and_missing_paths_are_refused(tmp_path):
    (tmp_path / "folder.pth").mkdir()
    for weights in (tmp_path / "folder.pth", tmp_path, tmp_path / "none.pth", "folder/none", "none.pth", "../none"):
        assert refusal(weights)[0] == f"no such weights file: '{weights}'"
    message, hint = refusal("wieghts")
    assert "no such weights or file: 'wieghts'" in message
    assert "IMAGENET1K_V1" in hint


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_that_the_system_cannot_read_is_an_error(name, tmp_path):
    if not Path("/proc/self/mem").exists():
        pytest.skip("needs Linux")
    (tmp_path / name).symlink_to("/proc/self/mem")  # it opens, and its first byte is an input/output error
    assert refusal(tmp_path / name)[0].startswith(f"cannot read '{tmp_path / name}'")


def test_a_path_that_is_no_regular_file_is_refused_at_once(tmp_path):
    """The SHA-256 is computed while the weights are loaded, which a pipe would block."""
    os.mkfifo(tmp_path / "pipe.pth")
    (tmp_path / "endless.pth").symlink_to("/dev/zero")
    (tmp_path / "sharded.index.json").write_text('{"weight_map": {"a": "pipe.pth"}}')
    for weights in (tmp_path / "pipe.pth", tmp_path / "endless.pth", "/dev/zero"):
        assert refusal(weights)[0] == f"not a regular file: '{weights}'"
    assert refusal("file:///dev/zero")[0] == "not a regular file: '/dev/zero'"
    assert refusal(tmp_path / "sharded.index.json")[0].endswith("names a missing file: 'pipe.pth'")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        (NAME, {"fc.weight": (2**40, 1024), "fc.bias": (2**40,)}),
        (NAME, {"conv1.0.weight": (24, 2**40, 3, 3)}),
        ("vit_b_32", {"encoder.pos_embedding": (1, 2**40, 768)}),
        ("vit_b_32", {"conv_proj.weight": (768, 3, 1, 2**40)}),
    ],
)
def test_a_small_file_whose_tensors_claim_terabytes_is_refused(name, sizes, save):
    state = constant(shapes_of(name)) | {key: torch.zeros(1).expand(shape) for key, shape in sizes.items()}
    path = save(state)
    assert Path(path).stat().st_size < 200_000
    assert refusal(path, name)[0].startswith(f"cannot build a network for the weights in '{path}': ")


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["encoder.pos_embedding", "conv_proj.weight"])
@pytest.mark.parametrize("shape", [(), (5,), (1, 0, 768), (1, 1, 768)])
def test_tensors_of_a_vision_transformer_of_wrong_shapes_are_refused(key, shape, save):
    message, _ = refusal(save(constant(shapes_of("vit_b_32")) | {key: torch.zeros(shape)}), "vit_b_32")
    assert f"do not fit: {key} is ({', '.join(map(str, shape))}), not (" in message


def test_other_keys_than_the_networks_are_refused(save, state):
    fewer = {key: values for key, values in state.items() if not key.startswith("fc.")}
    message, hint = refusal(save(fewer))
    assert message.endswith("do not fit: missing fc.weight; missing fc.bias")
    assert "no head ('fc')" in hint
    assert refusal(save({**state, "fc.gain": torch.ones(3)}))[0].endswith("do not fit: unexpected fc.gain")
    assert refusal(save({**fewer, "head.weight": torch.ones(3)}))[0].endswith(
        "do not fit: missing fc.weight; missing fc.bias; unexpected head.weight"
    )


def test_other_shapes_than_the_networks_are_refused(save, state):
    other = {**state, "fc.weight": torch.zeros(10, 1024), "fc.bias": torch.zeros(11)}
    message, hint = refusal(save(other))
    assert message.endswith("do not fit: fc.weight is (10, 1024), not (1000, 1024); fc.bias is (11), not (1000)")
    assert "number of classes" in hint
    assert "conv1.1.num_batches_tracked is (1), not ()" in refusal(
        save({**state, "conv1.1.num_batches_tracked": torch.zeros(1, dtype=torch.int64)})
    )[0]  # fmt: skip


@pytest.mark.thorough
def test_weights_of_another_model_are_refused(save, state):
    message, _ = refusal(save(build("squeezenet1_1").state_dict()))
    assert "missing conv1.0.weight" in message
    assert "and " in message
    assert len(message) < 500
    message, _ = refusal(save(build("shufflenet_v2_x1_0").state_dict()))
    assert "stage2.0.branch1.2.weight is (58, 24, 1, 1), not (24, 24, 1, 1)" in message


@pytest.mark.thorough
def test_an_old_key_with_another_shape_is_refused(save):
    state = {key: values for key, values in build("maskrcnn_resnet50_fpn").state_dict().items() if "mask_head" in key}
    state = renamed(state, *((f"mask_head.{number}.0.", f"mask_head.mask_fcn{number + 1}.") for number in range(4)))
    state["roi_heads.mask_head.mask_fcn1.bias"] = torch.zeros(3)
    message, _ = refusal(save(state), "maskrcnn_resnet50_fpn")
    assert "roi_heads.mask_head.0.0.bias" in message
    assert "[3]" in message


@pytest.mark.parametrize(
    ("content", "kind"),
    [([torch.ones(3)], "list"), (torch.ones(3), "Tensor"), ({}, "dict"), ({"state_dict": {}}, "dict"),
     ({1: torch.ones(1)}, "dict"), ({"a": 1}, "dict"), (OrderedDict(), "OrderedDict"), (7, "int"),
     ({"model": [1], "state_dict": 3}, "dict")],
)  # fmt: skip
def test_a_file_without_a_state_dict_is_refused(content, kind, save):
    message, hint = refusal(save(content))
    assert "no state dict in" in message
    assert message.endswith(f"it contains a {kind}")
    assert "torch.save(model.state_dict(), path)" in hint


@pytest.mark.sampled
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["top", "value", "key", "nested", "beside"])
def test_malice_is_refused_and_does_not_run(place, zipped, save, state, tmp_path):
    malice = Malice(tmp_path / "marker")
    content = {
        "top": malice,
        "value": {**state, "fc.bias": malice},
        "key": {**state, (1, malice): torch.ones(1)},
        "nested": {"state_dict": {**state, "fc.bias": [{"a": malice}]}},
        "beside": {"state_dict": state, "epoch": malice},
    }[place]
    message, hint = refusal(save(content, _use_new_zipfile_serialization=zipped))
    assert message.startswith("refused: ")
    assert "system" in message
    assert "state_dict" in hint
    assert not (tmp_path / "marker").exists()


@pytest.mark.sampled
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_malice_in_a_bare_pickle_does_not_run(name, protocol, save_bytes, tmp_path):
    refusal(save_bytes(pickle.dumps({"a": Malice(tmp_path / "marker")}, protocol), name))
    assert not (tmp_path / "marker").exists()


@pytest.mark.thorough
def test_no_setting_of_the_environment_lets_code_run(save, cache, state, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    content = {**state, "fc.bias": Malice(tmp_path / "marker")}
    refusal(save(content))
    torch.save(content, published_file(cache, NAME))
    refusal("default")
    assert not (tmp_path / "marker").exists()


def test_a_whole_pickled_model_of_the_format_before_archives_is_refused(network, save):
    message, hint = refusal(save(network, _use_new_zipfile_serialization=False))
    assert message.startswith("refused: ")
    assert "torchvision.models.shufflenetv2.ShuffleNetV2" in message
    assert "state_dict()" in hint


def test_a_torchscript_archive_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(nn.Conv2d(3, 4, 3)).save(tmp_path / "script.pt")
    message, hint = refusal(tmp_path / "script.pt")
    assert "TorchScript" in message
    assert "state_dict" in hint


# Random weights, only where they are asked for


@pytest.mark.parametrize("name", ["squeezenet1_1", "lraspp_mobilenet_v3_large", *thorough("mobilenet_v3_small", "r3d_18")])
def test_random_weights_equal_torchvisions(name):
    kwargs = {"weights_backbone": None} if "lraspp" in name else {}
    before = torch.get_rng_state()
    model = load("random:7", name)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert_holds(model.module, models.get_model(name, weights=None, **kwargs).state_dict())
    assert model.weights == "random weights, seed 7"
    assert model.sha256 is None


def test_random_weights_are_repeatable_and_differ_with_the_seed():
    first, again, zero, seventh = (
        load(weights).module.state_dict() for weights in ("random", "random", "random:0", "random:7")
    )
    for key, values in first.items():
        assert torch.equal(values, again[key])
        assert torch.equal(values, zero[key])
    assert not torch.equal(first["fc.weight"], seventh["fc.weight"])
    assert load("random").label == f"{NAME} (random weights, seed 0)"


@pytest.mark.parametrize(
    "weights",
    ["random:", "random:-1", "random:x", "random:7 ", "random: 7", "random7", "Random", "random:0.5", "random:1e3",
     "random:1234567890123456789", "rand", "random\n", ""],
)  # fmt: skip
def test_misspelled_random_weights_are_an_error(weights):
    _, hint = refusal(weights)
    assert "random" in hint


# The digest of a network that was given as it is


def test_the_digest_of_a_state_dict_covers_names_and_bytes(state):
    digest = digest_of_state(state)
    assert digest == digest_of_state({key: values.clone() for key, values in state.items()})
    assert len(digest) == 64
    assert digest != digest_of_state({**state, "fc.bias": state["fc.bias"] + 1})
    assert digest != digest_of_state({f"module.{key}": values for key, values in state.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_each_kind_of_tensor_has_a_digest(dtype):
    values = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    different = [values, values.t(), values.view(6), values[:0], values[0, 0], values.bool().to(torch.uint8)]
    assert len({digest_of_state({"a": tensor}) for tensor in different}) == len(different)
    assert digest_of_state({"a": values}) == digest_of_state({"a": values.t().contiguous().t()})


def test_a_network_shares_the_tensors_of_the_file():
    """VGG-16 would otherwise be in memory twice."""
    module, values = nn.Conv2d(3, 4, 3, bias=False), torch.randn(4, 3, 3, 3)
    load_state_dict(module, {"weight": values}, Path("x.pth"))
    assert module.weight.data_ptr() == values.data_ptr()
    assert isinstance(module.weight, nn.Parameter)


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(4, 1, 1, 1).expand(4, 3, 3, 3),
        torch.randn(8, 3, 3, 3)[::2],
        torch.randn(4, 3, 3, 3, dtype=torch.float64),
    ],
    ids=["channels last", "expanded", "every other", "another precision"],
)
def test_the_layout_of_weights_in_a_file_does_not_change_results(values):
    module = nn.Conv2d(3, 4, 3, bias=False)
    load_state_dict(module, {"weight": values}, Path("x.pth"))
    assert module.weight.is_contiguous()
    assert torch.equal(module.weight, values.float())


def test_sparse_weights_for_a_dense_network_are_refused():
    with pytest.raises(WeightsError, match="do not fit"):
        load_state_dict(nn.Conv2d(3, 4, 3, bias=False), {"weight": torch.randn(4, 3, 3, 3).to_sparse()}, Path("x.pth"))


def test_complex_weights_for_a_real_network_are_refused(tmp_path):
    module = nn.Conv2d(3, 2, 1)
    state = {key: values * 1j for key, values in module.state_dict().items()}
    with pytest.raises(WeightsError, match="complex numbers in 'weight', 'bias'"):
        load_state_dict(module, state, tmp_path / "weights.pth")


def test_a_state_dict_with_a_lone_surrogate_in_a_key_has_a_digest():
    assert digest_of_state({"\ud800": torch.ones(1)}) != digest_of_state({"\ud801": torch.ones(1)})
