"""What the system knows of a connection that nobody else can tell: whether the other machine still hears us."""

from __future__ import annotations

import os
import socket

#: Where Linux has the number of times that the oldest bytes were sent again without a word from the other end.
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_RETRANSMITS_AT, _INFO_BYTES = 2, 8
#: After so many nobody is there: more than a second of silence, by Linux' own times.
IN_VAIN = 3


def is_sent_in_vain(descriptor: int) -> bool:
    """Has the system sent the same bytes again and again, and heard nothing? A machine that is there says that it got
    them, however busy its programs are. False also where the system does not tell."""
    if _TCP_INFO is None:
        return False
    try:
        with socket.socket(fileno=os.dup(descriptor)) as same:
            info = same.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return False
    return len(info) > _RETRANSMITS_AT and info[_RETRANSMITS_AT] >= IN_VAIN
