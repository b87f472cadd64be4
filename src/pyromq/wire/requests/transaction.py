"""What administrators ask of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.wire.codes import RequestCode
from pyromq.wire.fields import text
from pyromq.wire.requests.client import Request, register


@dataclass(slots=True, kw_only=True)
class ResumeCheck(Request):
    """Ask again for a half message, as if it had never been asked for."""

    CODE = RequestCode.RESUME_CHECK_HALF_MESSAGE

    topic: str | None = text("topic", default=None)
    #: The id that names its position in the log.
    message_id: str | None = text("msgId", default=None)


register(ResumeCheck)
