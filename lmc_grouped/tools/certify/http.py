"""HTTP to one server, from the standard library alone."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from lmc_grouped.tools.certify.errors import RequestRefused, ServerGone
from lmc_grouped.tools.errors import ToolError

END_OF_STREAM = b"[DONE]"
API_KEY_VARIABLE = "VLLM_API_KEY"


class HttpClient:
    """JSON and server-sent events, one request at a time.

    Every method raises `RequestRefused` when the answer is an HTTP error and
    `ServerGone` when there is no answer or it breaks off.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        """`url` is the server's root, `http://localhost:8000`; a trailing `/v1`
        is accepted. The environment's VLLM_API_KEY is sent when it is set.

        Raises ToolError when `url` is not an HTTP address.
        """
        parts = _split_address(url)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        self._timeout_seconds = timeout_seconds
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY_VARIABLE):
            self._headers["Authorization"] = f"Bearer {key}"
        # A proxy from the environment cannot reach a server on this machine.
        proxies: dict[str, str] | None = {} if _is_loopback(parts.hostname or "") else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def pin_to_first_engine(self) -> None:
        """Have a data-parallel server send all further requests to its engine 0:
        engines do not share their prefix caches."""
        self._headers["X-data-parallel-rank"] = "0"

    def get(self, path: str) -> bytes:
        """The body of GET `path`."""
        with self._open("GET", path, None) as response:
            return response.read()

    def post(self, path: str, body: Mapping[str, object]) -> bytes:
        """The body of POST `path`."""
        with self._open("POST", path, body) as response:
            return response.read()

    def stream(self, path: str, body: Mapping[str, object]) -> Iterator[bytes]:
        """The `data:` payloads of POST `path`, up to and without `[DONE]`."""
        with self._open("POST", path, body) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == END_OF_STREAM:
                    return
                yield payload
            raise ServerGone(
                f"{self.url}{path} ended its stream before {END_OF_STREAM.decode()}: "
                "look at the server's log"
            )

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> Iterator[http.client.HTTPResponse]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers=self._headers, method=method
        )
        what = f"{method} {self.url}{path}"
        try:
            with self._opener.open(request, timeout=self._timeout_seconds) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise RequestRefused(what, error.code, _body_of(error)) from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            raise ServerGone(
                f"{what}: no answer within {self._timeout_seconds:g} s or the connection broke "
                f"({cause or type(cause).__name__}): check that the server runs and is reachable "
                "under --url"
            ) from error


def _split_address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises when it is not a number up to 65535
    except ValueError:
        valid = False
    if not valid:
        raise ToolError(
            f"--url is {url!r}; allowed is http://HOST[:PORT] or https://HOST[:PORT]: "
            "give the address vLLM listens on, for example http://localhost:8000"
        )
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _body_of(error: urllib.error.HTTPError) -> str:
    try:
        return error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return error.reason
