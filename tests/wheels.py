"""Building the wheel and installing it somewhere fresh, without the network and without a trace in the tree."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def copy_of_the_source(directory: Path) -> Path:
    source = directory / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def build_wheel(directory: Path, **environment: str) -> Path:
    """Built from a copy, with the tools that are installed here: no network, and nothing left in the tree."""
    source = copy_of_the_source(directory)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(source)], **environment)
    [wheel] = directory.glob("*.whl")
    return wheel


def run(command: list[str], **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYROMQ_")}
    done = subprocess.run(
        command, env=kept | {"NO_COLOR": "1"} | environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(wheel: Path, directory: Path) -> Path:
    """A fresh environment with this wheel; what it depends on is borrowed from here. Its `bin` directory."""
    home = directory / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q", str(wheel)])
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    return home / "bin"
