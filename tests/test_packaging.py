"""The wheel: with the kernel, and without it, as it is built where there is no C compiler."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from wheels import ROOT, build_wheel, copy_of_the_source, install, run

pytestmark = pytest.mark.slow

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
KERNELS = {
    f"pyromq/{name}{SUFFIX}"
    for name in (
        "records/_kernel", "spark/_kernel", "accel/_append_batch", "accel/_headers", "accel/_intake", "accel/_pulls",
        "accel/_queues", "accel/_sends", "accel/_sync",
    )
}  # fmt: skip
COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0])


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("pure"), PYROMQ_NO_EXTENSIONS="1")


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("there is no C compiler here")
    directory = tmp_path_factory.mktemp("compiled")
    compiler = directory / "cc"  # the result is never run, so it need not be fast
    compiler.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n', encoding="utf-8")
    compiler.chmod(0o755)
    return build_wheel(directory, CC=str(compiler))


@pytest.fixture(scope="module")
def pure_bin(pure_wheel: Path) -> Path:
    return install(pure_wheel, pure_wheel.parent)


def test_a_wheel_without_the_kernel_runs_anywhere(pure_wheel: Path) -> None:
    assert pure_wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure_wheel).namelist() if name.endswith(".so")]


def test_a_wheel_with_the_kernel_has_all_of_it(compiled_wheel: Path) -> None:
    names = set(zipfile.ZipFile(compiled_wheel).namelist())
    assert names >= KERNELS
    assert not [name for name in names if name.endswith(".c")]


def sources_of_the_kernel() -> set[str]:
    found = (path for kind in ("pyx", "pxd", "pyi") for path in (ROOT / "src").rglob(f"*.{kind}"))
    return {path.relative_to(ROOT / "src").as_posix() for path in found}


def test_whoever_has_a_wheel_has_the_sources_of_its_kernel(pure_wheel: Path) -> None:
    assert sources_of_the_kernel() <= set(zipfile.ZipFile(pure_wheel).namelist())
    assert len(sources_of_the_kernel()) >= 2 * len(KERNELS) + 7, "each with a stub, some with a .pxd"


def test_a_source_distribution_can_be_compiled(tmp_path: Path) -> None:
    source = copy_of_the_source(tmp_path)
    build = f"import os; os.chdir({str(source)!r}); from setuptools import build_meta; build_meta.build_sdist('..')"
    run([sys.executable, "-c", build])
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"src/{path}" for path in sources_of_the_kernel()} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".c", ".so"))]


def test_a_wheel_says_what_it_is(pure_wheel: Path) -> None:
    archive = zipfile.ZipFile(pure_wheel)
    names = archive.namelist()
    [metadata_file] = [name for name in names if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(archive.read(metadata_file).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "pyromq/py.typed" in names
    assert not [name for name in names if not name.startswith(("pyromq", "pyspark_pyromq"))]


def test_spark_finds_the_formats_in_a_wheel(pure_wheel: Path) -> None:
    """It looks for modules at the top whose names begin with `pyspark_`."""
    names = set(zipfile.ZipFile(pure_wheel).namelist())
    assert names >= {"pyspark_pyromq/__init__.py", "pyspark_pyromq_segments/__init__.py"}


def test_without_the_kernel_the_readable_forms_serve(pure_bin: Path, tmp_path: Path) -> None:
    lines = (
        "from pathlib import Path; import pyromq; from pyromq.config import StoreConfig;"
        "from pyromq.model.message import Draft; from pyromq.records import scan;"
        "from pyromq.store.queues import queue_cursor;"
        "from pyromq.store.message_store import MessageStore, decode;"
        f"store = MessageStore(StoreConfig(root=Path({str(tmp_path)!r}), segment_bytes=1 << 16)); store.open();"
        "store.append([Draft(b'orders', 0, b'hello')]); store.dispatch();"
        "print(pyromq.__file__, scan.COMPILED, queue_cursor.COMPILED);"
        "print(decode(store.read('orders', 0, 0).records[0]).body); store.close()"
    )
    output = run([str(pure_bin / "python"), "-c", lines]).splitlines()
    assert output[0].startswith(str(pure_bin.parent)), "the wheel is what runs, not the source tree"
    assert output[0].endswith("False False")
    assert output[1] == "b'hello'"


def test_a_failing_c_compiler_leaves_an_install_without_the_kernel(tmp_path: Path) -> None:
    """`CC=false` is a compiler that fails on every file."""
    wheel = build_wheel(tmp_path, CC="false", CXX="false", LDSHARED="false")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    python = install(wheel, tmp_path) / "python"
    lines = "import pyromq; from pyromq.records import scan; print(pyromq.__file__, scan.COMPILED)"
    place, compiled = run([str(python), "-c", lines]).split()
    assert place.startswith(str(tmp_path)), "the wheel is what runs, not the source tree"
    assert compiled == "False"


def test_a_missing_kernel_that_is_asked_for_is_an_error(pure_bin: Path) -> None:
    with pytest.raises(AssertionError, match=r"No module named 'pyromq\.records\._kernel'"):
        run([str(pure_bin / "python"), "-c", "import pyromq.records.scan"], PYROMQ_KERNEL="compiled")


def test_the_doctor_says_which_form_runs(pure_bin: Path) -> None:
    kernel = json.loads(run([str(pure_bin / "pyromq"), "doctor", "--json"]))["kernel"]
    assert set(kernel.values()) == {False}
