"""An object store with Amazon's interface on this machine: moto's server, from an environment of its own.

It is no dependency of anything here: with what it brings it is larger than PyroMQ and all that PyroMQ needs. The first
test that wants it makes `build/object-store` with pip, which takes a minute and the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from pyarrow import fs

from pyromq.testing.brokers.ports import free_port
from wheels import ROOT, run

HOME = ROOT / "build" / "object-store"
#: moto, and what its server needs for this one service. `moto[server]` brings all that Amazon has.
PACKAGES = ("moto>=5.1,<6", "flask", "flask-cors", "py-partiql-parser", "pyyaml")
KEY, SECRET, BUCKET = "AKIAPYROMQ", "never-to-be-shown-0815", "pyromq-tests"
START_S = 60.0


def python() -> Path:
    """The Python that has moto."""
    made = HOME / "made"
    if not made.exists():
        venv.create(HOME, with_pip=False, clear=True, symlinks=True)
        run([sys.executable, "-m", "pip", "--python", str(HOME / "bin" / "python"), "install", "-q", *PACKAGES])
        made.touch()
    return HOME / "bin" / "python"


class ObjectStore:
    """A server with an empty bucket."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"

    def uri(self, path: str) -> str:
        """As pyarrow reads it: keys before the bucket, where the server is behind a `?`."""
        return f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?{self._settings}"

    @property
    def _settings(self) -> str:
        return f"endpoint_override={quote(self.endpoint, safe='')}&region=us-east-1"

    @property
    def environment(self) -> Mapping[str, str]:
        """The same for those who look there: pyarrow, delta-rs."""
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def make_bucket(self) -> None:
        files, _ = fs.FileSystem.from_uri(f"s3://{KEY}:{SECRET}@{BUCKET}?{self._settings}&allow_bucket_creation=true")
        files.create_dir(BUCKET)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    port = free_port()
    server = subprocess.Popen(
        [str(python()), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert server.stderr is not None
        late = threading.Timer(START_S, server.kill)
        late.start()
        said = next((line for line in server.stderr if "Running on" in line), None)
        late.cancel()
        assert said is not None, "moto's server did not start"
        # Drain its output: a full pipe would block the server.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        store = ObjectStore(port)
        store.make_bucket()
        yield store
    finally:
        server.kill()
        server.wait()
