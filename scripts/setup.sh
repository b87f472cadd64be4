#!/usr/bin/env bash
# Builds PyroMQ and everything its tests need into .venv. `make setup` calls it when something has changed.
#
# Needs Python 3.11 or newer. A C compiler makes it fast; Spark needs Java; Java and Maven let it be compared with Apache
# RocketMQ.
# What is missing is said in a sentence. Only Python is worth stopping for.
set -euo pipefail
cd "$(dirname "$0")/.."

LOG=build/setup.log
COMPILER_LOG=build/kernel.log

say() { printf 'setup: %s\n' "$*" >&2; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local name
    for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python; do
        if is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    say "Python 3.11 or newer is missing: get it from python.org or your system (Debian, Ubuntu: apt install python3 python3-venv)."
    exit 1
}

make_venv() {
    is_new_enough .venv/bin/python && return
    local python
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "the venv module of $("$python" -V) is missing: get it from your system (Debian, Ubuntu: apt install python3-venv)."
        exit 1
    fi
    say "making .venv with $("$python" -V)"
    "$python" -m venv --clear .venv
}

# Whether the kernel can be compiled: the compiler that Python would call, and Python's own headers.
can_compile() {
    local compiler
    compiler=${CC:-$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
    if ! command -v "${compiler%% *}" >/dev/null; then
        say "a C compiler (${compiler%% *}) is missing, so the slower Python forms serve: get one (Debian, Ubuntu: apt install gcc) and run make clean setup."
        return 1
    fi
    if ! .venv/bin/python -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'; then
        say "Python's C headers are missing, so the slower Python forms serve: get them (Debian, Ubuntu: apt install python3-dev) and run make clean setup."
        return 1
    fi
}

build_requirements() {
    .venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")'
}

# pip's own --log is not used: it lists every version of every package, 50 MB of text.
pip_install() { .venv/bin/python -m pip install --progress-bar off "$@" >>"$LOG" 2>&1 || failed; }

failed() {
    say "installing failed; all of the output is in $LOG. (Packages come from the package index, so the network is needed.)"
    exit 1
}

# The kernel is compiled in the background while pip unpacks the dependencies: on two processors setup takes a third less.
install() {
    local requirements compiler=
    mkdir -p build
    rm -f "$LOG"
    say "installing into .venv"
    # Debian's and Python 3.11's own pip are too old to read the build settings.
    pip_install --upgrade pip
    mapfile -t requirements < <(build_requirements)
    pip_install "${requirements[@]}"
    if [[ -z ${PYROMQ_NO_EXTENSIONS:-} ]]; then
        .venv/bin/python setup.py build_ext --inplace >"$COMPILER_LOG" 2>&1 &
        compiler=$!
        trap 'kill "$compiler" 2>/dev/null || true' EXIT
    fi
    PYROMQ_NO_EXTENSIONS=1 pip_install --no-build-isolation --editable '.[dev]'
    if [[ -n $compiler ]]; then
        wait "$compiler" || true # stale_kernels reports what did not compile
        trap - EXIT
    fi
}

# Compiled modules that are missing, or older than a source of theirs: those must not run.
stale_kernels() {
    local suffix source module
    suffix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    for module in src/pyromq/*/_*.pyx; do
        module=${module%.pyx}$suffix
        for source in src/pyromq/*/*.pyx src/pyromq/*/*.pxd; do
            if [[ ! $module -nt $source ]]; then
                echo "$module"
                break
            fi
        done
    done
}

# An editable install leaves Python to translate each module when it is first imported, or at every start where it may
# not write: a broker's start would take twice as long.
translate() { .venv/bin/python -m compileall -q src/pyromq; }

make_venv
if can_compile; then
    install
    stale=$(stale_kernels)
    if [[ -n $stale ]]; then
        say "the kernel did not compile although there is a C compiler ($(echo "$stale" | tr '\n' ' ')); why is in $COMPILER_LOG."
        exit 1
    fi
else
    PYROMQ_NO_EXTENSIONS=1 install
    stale_kernels | while read -r module; do rm -f "$module"; done
fi

translate

if ! command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java" >/dev/null; then
    say "java is missing, so \`pyromq spark\` will not run and the tests of tests/spark will be skipped: get Java 17 or newer (Debian, Ubuntu: apt install default-jdk)."
fi
for program in java javac mvn; do
    if ! command -v "$program" >/dev/null; then
        say "$program is missing, so the tests against Apache RocketMQ will be skipped: get a JDK and Maven (Debian, Ubuntu: apt install default-jdk maven)."
        break
    fi
done
touch .venv/.ready
say "ready: .venv/bin/pyromq"
