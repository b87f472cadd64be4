"""Peers as they can be had: Python packages, jars and server programs, kept in a cache directory and nowhere else.

Each is fetched once, by the ordinary tool for its kind (pip, Maven, Go, apt-get), into a directory that is marked
when it is whole. `CannotBeHad` says why one could not: the benchmark goes on without it, and says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The versions of the servers. RocketMQ's is the one that the interop tests run against.
ROCKETMQ_JARS = "org.apache.rocketmq:rocketmq-namesrv:5.5.0 org.apache.rocketmq:rocketmq-proxy:5.5.0"
KAFKA_JARS = "org.apache.kafka:kafka_2.13:4.1.0"
NATS_MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
#: With the two libraries that a small system lacks.
REDIS_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
FETCH_TIMEOUT_S = 900
SAID_CHARS = 1500

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pyromq.benchmarks</groupId><artifactId>peers</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class CannotBeHad(Exception):
    """Why a peer does not take part, in words for the table."""


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pyromq-bench"


@dataclass(frozen=True, slots=True)
class Program:
    """A server's executable, and what its environment needs."""

    path: str
    environment: Mapping[str, str]


class Cache:
    """Where what was fetched is kept from one run to the next."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def python(self, packages: Sequence[str]) -> Path:
        """The Python of a virtual environment with these packages."""

        def make(into: Path) -> None:
            _run([sys.executable, "-m", "venv", str(into)])
            _run([str(into / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])

        return self._once("python", " ".join(packages), make) / "bin" / "python"

    def jars(self, coordinates: str) -> str:
        """A class path of artifacts with all that they depend on; the jars are in Maven's own repository."""
        mvn = _on_path("mvn")

        def make(into: Path) -> None:
            (into / "pom.xml").write_text(pom(coordinates), "utf-8")
            goal = f"{DEPENDENCY_PLUGIN}:build-classpath"
            _run([mvn, "-q", "-B", "-f", str(into / "pom.xml"), goal, f"-Dmdep.outputFile={into / 'classpath.txt'}"])

        def whole(made: Path) -> bool:
            return all(Path(jar).exists() for jar in _classpath(made).split(os.pathsep))

        return _classpath(self._once("jars", coordinates, make, whole))

    def nats_server(self) -> Program:
        """From the PATH, or built from its source, which the Go proxy has."""
        if found := shutil.which("nats-server"):
            return Program(found, {})
        go = _on_path("go")

        def make(into: Path) -> None:
            _run([go, "install", NATS_MODULE], GOBIN=str(into))

        return Program(str(self._once("nats", NATS_MODULE, make) / "nats-server"), {})

    def redis_server(self) -> Program:
        """From the PATH, or Debian's packages unpacked: nothing is installed, no service is started."""
        if found := shutil.which("redis-server"):
            return Program(found, {})
        apt_get, unpack = _on_path("apt-get"), _on_path("dpkg-deb")

        def make(into: Path) -> None:
            _run([apt_get, "download", *REDIS_PACKAGES], directory=into)
            for package in into.glob("*.deb"):
                _run([unpack, "-x", str(package), str(into)])

        made = self._once("redis", " ".join(REDIS_PACKAGES), make)
        libraries = os.pathsep.join(sorted({str(file.parent) for file in made.rglob("*.so.*")}))
        return Program(str(made / "usr" / "bin" / "redis-server"), {"LD_LIBRARY_PATH": libraries})

    def _once(
        self, kind: str, what: str, make: Callable[[Path], None], whole: Callable[[Path], bool] = Path.exists
    ) -> Path:
        stamp = hashlib.sha256(f"{sys.version} {what}".encode()).hexdigest()[:12]
        place = self._directory / f"{kind}-{stamp}"
        done = place / ".whole"
        if not (done.exists() and whole(place)):
            shutil.rmtree(place, ignore_errors=True)  # a virtual environment cannot be moved: it is made in place
            place.mkdir(parents=True)
            make(place)
            done.write_text(what + "\n", "utf-8")
        return place


def pom(coordinates: str) -> str:
    return POM.format("".join(DEPENDENCY.format(*one.split(":")) for one in coordinates.split()))


def java() -> str:
    return _on_path("java")


def _classpath(made: Path) -> str:
    return (made / "classpath.txt").read_text("utf-8").strip()


def _on_path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise CannotBeHad(f"{program} is not on PATH")
    return found


def _run(command: Sequence[str], directory: Path | None = None, **environment: str) -> None:
    with tempfile.TemporaryFile("w+") as said:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **environment},
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise CannotBeHad(f"{Path(command[0]).name}: {reason}") from reason
        said.seek(0)
        if done.returncode:
            raise CannotBeHad(f"{' '.join([Path(command[0]).name, *command[1:4]])} …: {said.read()[-SAID_CHARS:]}")
