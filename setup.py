"""Compiles the accelerated modules; everything else about the package is in pyproject.toml.

They are Cython (`.pyx`) and optional: without Cython or a C compiler, or with `PYROMQ_NO_EXTENSIONS=1`, the build goes
on without them, and the Python code that defines what they do runs instead.
"""

import os
from pathlib import Path

from setuptools import setup
from setuptools.extension import Extension

MODULES = sorted(Path("src").glob("pyromq/*/_*.pyx"))


def kernel_extensions() -> list[Extension]:
    if os.environ.get("PYROMQ_NO_EXTENSIONS"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("pyromq: Cython is not installed; building without the compiled kernel")
        return []
    extensions = [
        Extension(".".join(path.with_suffix("").parts[1:]), [str(path)], extra_compile_args=["-O3"]) for path in MODULES
    ]
    cythonized = cythonize(
        extensions,
        build_dir="build/cython",
        include_path=["src"],
    )
    # Cython copies only some attributes of an extension: without this a missing C compiler ends the build.
    for extension in cythonized:
        extension.optional = True
    return cythonized


setup(ext_modules=kernel_extensions())
