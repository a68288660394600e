"""A store that does not answer is named, and errors of stores have hints."""

import socket

import pytest
from extras import obstore as obstore

from fmapviz.core import store_connection
from fmapviz.images.find import find_images


@pytest.mark.thorough
def test_a_store_that_hangs_is_an_error_with_its_name(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}", "AWS_REGION": "us-east-1"}
        for name, value in {**address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(store_connection, "_QUIET_SECONDS", 0.2)
        monkeypatch.setattr(store_connection, "GIVE_UP_SECONDS", 1)
        monkeypatch.setattr(store_connection, "_quiet_until", [0.0])
        (found,) = find_images(["s3://hanging-photos/in"])
    assert found.code == "E_READ"
    assert "AWS_ENDPOINT_URL" in found.hint
    assert "waiting for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("<Code>NoSuchBucket</Code>", "create the bucket"),
        ("<Code>AccessDenied</Code> status code: 403", "ask for access"),
        ("<Code>PermanentRedirect</Code>", "AWS_REGION"),
        ("<Code>InvalidAccessKeyId</Code> status code: 403", "the keys are wrong"),
        ("<Code>ExpiredToken</Code>", "AWS_SESSION_TOKEN"),
        ("PUT http://169.254.169.254/latest/api/token", "AWS_ACCESS_KEY_ID"),
        ("HTTP error: kind: Connect, x", "AWS_ENDPOINT_URL"),
    ],
)
def test_errors_of_stores_have_hints(text, hint):
    assert hint in store_connection._explain(OSError(text)).__notes__[0]
