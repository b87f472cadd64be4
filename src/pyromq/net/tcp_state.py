"""TCP's own state of a connection: does the other machine still acknowledge our bytes?"""

from __future__ import annotations

import os
import socket

#: The byte of Linux' `tcp_info` that counts unacknowledged retransmissions of the oldest bytes.
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_RETRANSMITS_AT, _INFO_BYTES = 2, 8
#: A peer with this many retransmissions is gone: more than a second of silence, by Linux' own timers.
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
