"""Connect to object stores, and call obstore.

obstore is an optional package, imported with the first address. It does not read `~/.aws`, signals do not interrupt it, and
its errors are texts of many lines: these are handled here.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import time
from concurrent.futures import Future, wait
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fmapviz.core.version import __version__
from fmapviz.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from obstore.store import ObjectStore

_WEB_SECONDS = 60.0
GIVE_UP_SECONDS = 120  # after which a request without an answer fails, and no further one is sent in its place
_QUIET_SECONDS = 5.0  # after which a notice names the store
_ERRORS_OF_STATUS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
_ATTEMPTS = 5
_PROFILE_KEYS = {  # with the variables that take precedence
    **dict.fromkeys(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), ()),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_url": ("AWS_ENDPOINT_URL",),
}
_REASONS = (  # the first pattern that an error of obstore matches; other errors hold the answer of the store
    (r"^(AlreadyExists|Precondition)Error", errno.EEXIST, "another object is there"),
    (r"^InvalidPathError", errno.EINVAL, "an object has a name that is no path"),
    (
        r"latest/(api/token|meta-data)",
        errno.EIO,
        "no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, nor a role",
    ),
    (r"HTTP error.*kind: (Connect|Timeout)\b", errno.EHOSTUNREACH, "no connection to the store, or no answer in time"),
    (r"HTTP error", errno.ECONNRESET, "the connection to the store broke"),
)
_SEE = "the page remote-stores of the guide says where credentials, region and endpoint are taken from"
_HINTS = (
    (r"latest/(api/token|meta-data)", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    (r"NoSuchBucket|ContainerNotFound|specified bucket", "create the bucket, or check its name and AWS_ENDPOINT_URL"),
    (
        r"PermanentRedirect|TemporaryRedirect|AuthorizationHeaderMalformed|IllegalLocation|status code: 30[127]|redirect",
        "set AWS_REGION to the region of the bucket",
    ),
    (r"RequestTimeTooSkewed", "set the clock of this machine"),
    (r"ExpiredToken|TokenRefreshRequired|InvalidToken", "the session has ended: renew AWS_SESSION_TOKEN and its keys"),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|status code: 401", f"the keys are wrong; {_SEE}"),
    (r"AccessDenied|AuthorizationFailure|status code: 403|PermissionDenied|Unauthenticated", f"ask for access; {_SEE}"),
    (r"SlowDown|TooManyRequests|status code: (429|503)", "try again later, or with fewer workers="),
    (r"HTTP error.*kind: (Connect|Timeout)\b", f"check the network and AWS_ENDPOINT_URL; {_SEE}"),
    (r"HTTP error", "the same call continues"),
)
_T = TypeVar("_T")
_reporting, _quiet_until = threading.Lock(), [0.0]
_roots: set[str] = set()  # connected addresses


@cache
def connect(root: str, _process: int) -> ObjectStore:
    """Connect to a bucket, once in a process.

    Raises:
        OSError: obstore is missing, or the environment is invalid.
    """
    obstore()
    options: dict[str, Any] = {
        "retry_config": {
            "max_retries": attempts() - 1,
            "retry_timeout": timedelta(seconds=GIVE_UP_SECONDS),
        },
        "client_options": {
            "allow_http": True,  # for an endpoint that begins with it
            "connect_timeout": "10s",
            "read_timeout": f"{GIVE_UP_SECONDS}s",
            "timeout": "20m",
        },
    }
    if root.lower().startswith(("s3://", "s3a://")):
        options |= {"copy_if_not_exists": "multipart", **_profile()}
        endpoint = os.environ.get("AWS_ENDPOINT_URL", options.get("endpoint_url"))
        if endpoint and not re.match(r"https?://[^\s/]", endpoint):
            raise OSError(errno.EIO, "the endpoint is no address that begins with http:// or https://")
        if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            options["metadata_endpoint"] = "http://127.0.0.1:9"  # obstore does not know the variable
    _roots.add(root)
    store: ObjectStore = call(import_module("obstore.store").from_url, root, **options)
    return store


def attempts() -> int:
    """Return the maximum number of times that a request is sent."""
    value = os.environ.get("AWS_MAX_ATTEMPTS", "")
    return int(value) if value.isdecimal() and int(value) else _ATTEMPTS


def _profile() -> dict[str, str]:
    """Read keys, region and endpoint of a profile in `~/.aws`, unless the environment has them.

    Profiles that get their keys from another service (SSO, assumed roles) are not supported.
    """
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    home, profile = Path.home() / ".aws", os.environ.get("AWS_PROFILE", "default")
    files = {"AWS_CONFIG_FILE": home / "config", "AWS_SHARED_CREDENTIALS_FILE": home / "credentials"}
    parser = ConfigParser(interpolation=None)
    with suppress(ConfigError, UnicodeDecodeError):
        parser.read([os.environ.get(name, path) for name, path in files.items()])
    sections = [parser[name] for name in (f"profile {profile}", profile) if name in parser]
    keys = [key for key, variables in _PROFILE_KEYS.items() if os.environ.keys().isdisjoint(variables)]
    return {key: section[key] for section in sections for key in keys if key in section}


def obstore() -> Any:
    """Import obstore.

    Raises:
        OSError: It is missing.
    """
    # Any: a module.
    try:
        return import_module("obstore")
    except ImportError as error:
        raise OSError(errno.ENOSYS, "the package obstore is missing") from error


def call(function: Callable[..., _T], *args: Any, **options: Any) -> _T:
    """Call a function of obstore in another thread, since signals do not interrupt obstore.

    Raises:
        OSError: In place of the error of obstore.
    """
    # Any: the arguments of any function.
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(function(*args, **options))
        except BaseException as error:  # noqa: BLE001  raised below
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], _QUIET_SECONDS).done:
        _report_waiting()
    try:
        return answer.result()
    except Exception as error:
        ours = isinstance(error, OSError | ValueError) or type(error).__module__.startswith("obstore")
        if not ours or (isinstance(error, OSError) and error.errno):
            raise
        raise _explain(error) from error


def _report_waiting() -> None:
    """Report on standard error that a store has not answered, once a minute."""
    with _reporting:
        if time.monotonic() < _quiet_until[0]:
            return
        _quiet_until[0] = time.monotonic() + 60
    names = ", ".join(sorted(printable(root) for root in _roots)) or "the store"
    with suppress(OSError, AttributeError):  # standard error is closed
        sys.stderr.write(f"notice: waiting for {names}; without an answer for {GIVE_UP_SECONDS} s, the request fails\n")
        sys.stderr.flush()


def _explain(error: Exception) -> OSError:
    """Return an error of one line, without addresses, which may hold secrets; its note is the hint."""
    text = f"{type(error).__name__}: {error}"
    status, code = re.search(r"status code: (\d+)", text), re.search(r"<Code>(.*?)</Code>", text)
    number = _ERRORS_OF_STATUS.get(int(status[1]), errno.EIO) if status else errno.EIO
    number = errno.ENOENT if isinstance(error, FileNotFoundError) else number
    if cause := next((cause for pattern, *cause in _REASONS if re.search(pattern, text, re.DOTALL)), None):
        explained = OSError(*cause)
    elif code:
        message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
        explained = OSError(number, printable(" ".join(f"{code[1]}: {message[1] if message else ''}".split())))
    else:
        first_line = printable(re.sub(r"\S+://\S+", "...", text.partition("\n")[0]))
        explained = OSError(number, f"HTTP status {status[1]}" if status else first_line)
    if hint := next((hint for pattern, hint in _HINTS if re.search(pattern, text, re.DOTALL)), None):
        explained.add_note(hint)
    return explained


@contextmanager
def open_address(url: str) -> Iterator[HTTPResponse]:
    """Open a file on the web, by the standard library.

    obstore's HTTP store refuses answers without a length, which many web servers give.

    Raises:
        OSError: It cannot be read.
    """
    request = Request(url, headers={"User-Agent": f"fmapviz/{__version__}"})  # noqa: S310  the caller checks the scheme
    try:
        with urlopen(request, timeout=_WEB_SECONDS) as answer:  # noqa: S310
            yield answer
    except HTTPError as error:
        raise OSError(_ERRORS_OF_STATUS.get(error.code, errno.EIO), f"HTTP status {error.code}") from error
    except (URLError, HTTPException, ConnectionError, TimeoutError, ValueError) as error:
        reason = printable(str(getattr(error, "reason", error)))
        raise OSError(errno.EHOSTUNREACH, f"no connection: {reason}") from error
