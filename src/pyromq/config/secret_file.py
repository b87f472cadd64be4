"""The file with the secret that the brokers of a name and their admin tools share.

Found like Erlang's cookie: `replication.secret_file`, else PYROMQ_SECRET_FILE, else `pyromq/secret` below
XDG_CONFIG_HOME or ~/.config. The first program that needs it creates it with 32 random bytes in hex, mode 0600, so that
all programs of one user on one machine share it; the brokers of several machines get a copy. A file that other users
can read is refused: the secret lets its holder decide which broker leads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from pyromq.errors import ConfigError

SETTING = "replication.secret_file"
VARIABLE = "PYROMQ_SECRET_FILE"

#: Shorter secrets can be guessed from a recorded proof.
MIN_CHARACTERS = 32
MAX_BYTES = 4096
RANDOM_BYTES = 32

#: The setting's value; `None`: the environment decides. Modules that do no input and output name paths by this type.
SecretPath = Path | None


def secret_path(setting: SecretPath = None) -> Path:
    """Return the path of the secret. Raises ConfigError if there is no home directory."""
    if setting is not None:
        return setting
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if base := os.environ.get("XDG_CONFIG_HOME"):
        return Path(base) / "pyromq" / "secret"
    try:
        return Path.home() / ".config" / "pyromq" / "secret"
    except RuntimeError:
        raise ConfigError(
            f"the group secret has no place, for there is no home directory: name a file with {SETTING} or {VARIABLE}",
            SETTING,
        ) from None


def read_or_make_secret(setting: SecretPath = None) -> bytes:
    """Return the secret; create the file if there is none. Raises ConfigError."""
    path = secret_path(setting)
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        _make(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"the group secret in {path} cannot be read or created: {error.strerror or error}; name another file with "
            f"{SETTING} or {VARIABLE}",
            SETTING,
        ) from None


def _read(path: Path) -> bytes:
    """Raises OSError, ConfigError. Does not wait for the writer of a FIFO."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(file))
        secret = os.read(file, MAX_BYTES + 1).strip()
    finally:
        os.close(file)
    if not MIN_CHARACTERS <= len(secret) <= MAX_BYTES:
        raise ConfigError(
            f"the group secret in {path} has {len(secret)} characters: it needs {MIN_CHARACTERS} to {MAX_BYTES}; "
            "remove the file and a new secret is created, or copy it again from the other brokers",
            SETTING,
        )
    return secret


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the group secret {path} is not a regular file ({SETTING})", SETTING)
    if status.st_mode & 0o077:
        raise ConfigError(
            f"the group secret in {path} can be read by other users (mode {stat.S_IMODE(status.st_mode):03o}) and is "
            f"not used: run `chmod 600 {path}`, or name another file with {SETTING} or {VARIABLE}",
            SETTING,
        )


def _make(path: Path) -> None:
    """Create the file with its whole content at once: two programs that start together use the same secret.

    Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, secrets.token_hex(RANDOM_BYTES).encode() + b"\n")
        os.fsync(file)
        with contextlib.suppress(FileExistsError):  # another program created it first: use its secret
            os.link(draft, path)
    finally:
        os.close(file)
        draft.unlink()
