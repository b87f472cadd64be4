"""Compiles the kernel modules; everything else about the package is in pyproject.toml.

A kernel module (`_kernel.pyx`) is Cython. It is optional twice over: when Cython or a C
compiler is missing the build goes on without it, and the readable Python functions beside it serve instead.
`PYROMQ_NO_EXTENSIONS=1` leaves it out on purpose.
"""

import os
from pathlib import Path

from setuptools import setup
from setuptools.extension import Extension

KERNELS = ["records", "store", "wire", "net", "broker", "spark"]


def kernel_extensions() -> list[Extension]:
    if os.environ.get("PYROMQ_NO_EXTENSIONS"):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        print("pyromq: Cython is not installed; building without the compiled kernel")
        return []
    extensions = [
        Extension(
            f"pyromq.{room}._kernel",
            [str(Path("src/pyromq") / room / "_kernel.pyx")],
            extra_compile_args=["-O3"],
        )
        for room in KERNELS
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
