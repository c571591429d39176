"""S3 on loopback: moto's own server, and a layer before it that fails, cuts and lies as a test wants.

Its packages are in an environment of their own (`scripts/setup_beside s3`); without them `lacks` says so.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

BUCKET: Final = "runs"
KEY, SECRET = "AKIALOOPBACK", "a-secret-that-must-be-nowhere"
ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>as the test wants</Message></Error>'


def lacks() -> str | None:
    missing = [name for name in ("s3fs", "moto", "flask") if find_spec(name) is None]
    return f"no {', '.join(missing)}: `scripts/setup_beside s3` makes an environment with them" if missing else None


@dataclass(frozen=True)
class Fault:
    """A fault of S3 in requests of one method to paths with one ending. `code`: S3's name of the error."""

    method: str
    ending: str
    status: int = 200
    code: str = ""
    change: Callable[[bytes], bytes] | None = None  # of a body; its length is told as it is then
    cut: bool = False  # half of the body, where the whole length was told
    lost: bool = False  # answered, and not done
    slow_s: float = 0.0
    times: int = 1_000_000


class S3Server:
    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=WSGIRequestHandler)
        self.faults: list[Fault] = []
        self._counts: dict[int, Any] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="s3", daemon=True)
        self._thread.start()
        # moto's state is its process's: what a test before this one has left goes.
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def create(self, bucket: str = BUCKET) -> None:
        import boto3

        self.client(boto3).create_bucket(Bucket=bucket)

    def client(self, boto3: Any) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET
        )

    def objects(self) -> dict[str, bytes]:
        """All objects of the bucket, by their keys."""
        import boto3

        client = self.client(boto3)
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ())]
        return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        fault = self._fault(method, path)
        if fault is None:
            return self._moto(environ, start_response)
        time.sleep(fault.slow_s)
        if fault.code:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{fault.status} as-wanted", [("Content-Type", "application/xml")])
            return [ERROR.format(fault.code).encode()]
        if fault.lost:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("200 OK", [("ETag", '"0"')])
            return [b""]
        return self._changed(fault, environ, start_response)

    def _changed(self, fault: Fault, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: list[Any] = []
        body = b"".join(self._moto(environ, lambda status, headers, info=None: answer.extend((status, headers))))
        status, headers = answer
        length = len(body)
        if fault.change is not None:
            body = fault.change(body)
            length = len(body)
        elif fault.cut:
            body = body[: length // 2]
        others = [(name, value) for name, value in headers if name.lower() not in ("content-length", "content-range")]
        start_response(status, [*others, ("Content-Length", str(length))])
        return [body]

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method in ("*", method) and path.endswith(fault.ending):
                count = self._counts.setdefault(id(fault), itertools.count())
                if next(count) < fault.times:
                    return fault
        return None
