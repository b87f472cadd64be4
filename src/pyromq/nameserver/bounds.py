"""Limits of a name server's memory: any host that reaches its port may register.

Above a limit a request is refused with a sentence; the known entries stay.
"""

from __future__ import annotations

from pyromq.errors import BadRequest, SystemBusy

#: A topic is a directory in its broker's store, which no file system lets be longer; retry topics join two names.
MAX_TOPIC_CHARS = 512
#: Names of brokers, clusters and zones are topics too; an address is a host name (253) and a port.
MAX_NAME_CHARS = 300
#: Brokers. Clients ask for routes every 30 s, and the table of this many is already larger than what one asks for.
MAX_BROKERS = 10_000
#: Topics times the broker names that have them: some 500 bytes each, so half a gigabyte at the very most.
MAX_ROUTES = 1_000_000
#: Static topics times their brokers, and the text of one: 64 MiB together. Few use them at all.
MAX_MAPPINGS = 1_000
MAX_MAPPING_BYTES = 64 << 10
#: All key-value settings together: a namespace is answered in one frame of 16 MiB.
MAX_KV_CHARS = 4 << 20


def shown(name: str) -> str:
    """A name from the network as logs and answers have it: cut, and without line ends that would fake a log line."""
    cut = name if len(name) <= 100 else name[:97] + "..."
    return cut if cut.isprintable() else repr(cut)


def require_name(what: str, name: str, longest: int = MAX_NAME_CHARS) -> None:
    if not name or len(name) > longest or not name.isprintable():
        raise BadRequest(f"{what} {shown(name)!r} cannot be used: it has 1 to {longest} printable characters")


def require_room(holds: bool, what: str, limit: int) -> None:
    if not holds:
        raise SystemBusy(f"the name server knows {limit} {what}, which is its limit; nothing was changed")
