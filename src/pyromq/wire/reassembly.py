"""Bytes in any chunking, put together again.

    data = frames.receive(chunk)      # what was left over, with the chunk behind it
    ...                               # look at the whole frames in it, up to `at`
    frames.keep(data, at)             # what is left over now

Nothing is copied while chunks end where frames end, which is the usual case; a frame that comes in many chunks is
copied once, in time proportional to its length.
"""

from __future__ import annotations


class Reassembly:
    """What is left over between two chunks of one connection."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        return len(self._rest)

    def receive(self, chunk: memoryview) -> memoryview:
        """The bytes to look at. The view holds until `keep`, which must follow."""
        if not self._rest:
            return chunk
        self._rest += chunk
        return memoryview(self._rest)

    def keep(self, data: memoryview, at: int) -> None:
        """Keep what is behind `at` of the bytes that `receive` gave."""
        if data.obj is not self._rest:
            self._rest += data[at:]
            return
        data.release()
        del self._rest[:at]
