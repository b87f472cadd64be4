"""Leadership: asked by tools, slaves and other brokers of a name, and changed by hand. See `requests` for the form.

Importing this module makes the requests known under their codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.wire.codes import RequestCode
from pyromq.wire.fields import boolean, int32, int64, text
from pyromq.wire.requests.client import Request, register
from pyromq.wire.responses import Response


@dataclass(slots=True, kw_only=True)
class GetBrokerEpochs(Request):
    """Ask for a broker's epochs and the end of its log. The body of the answer: `bodies.epochs`."""

    CODE = RequestCode.GET_BROKER_EPOCH_CACHE

    #: Ours: who asks, if it is a slave of this name. So a master knows its slaves without a name server.
    name: str | None = text("brokerName", default=None)
    broker_id: int | None = int64("brokerId", default=None)
    address: str | None = text("brokerAddr", default=None)
    #: Ours: the cluster and the store of the asker, a nonce that the answer proves, and a proof of the group secret
    #: (`auth.proofs`). Without a proof nothing that the asker says of itself is believed.
    cluster: str | None = text("clusterName", default=None)
    member: str | None = text("member", default=None)
    nonce: str = text("nonce", default="")
    proof: str = text("proof", default="")


@dataclass(slots=True, kw_only=True)
class RoleRequest(Request):
    """A request that changes the role of a broker. Every one needs a proof of the group secret (`auth.proofs`)."""

    #: Issued by the broker that is asked, in its answer to `GetBrokerEpochs`. It works once.
    nonce: str = text("nonce", default="")
    proof: str = text("proof", default="")


@dataclass(slots=True, kw_only=True)
class PromoteBroker(RoleRequest):
    """To a slave: lead from now on. It answers when that is on its disk, and then restarts as the master.

    Asking once more with the same number is answered with the same words.
    """

    CODE = RequestCode.PROMOTE_BROKER

    #: The number of the new epoch: larger than every number that any broker of this name knows.
    epoch: int = int64("epoch")
    #: ASYNC_MASTER or SYNC_MASTER; None: as the master before.
    role: str | None = text("role", default=None)
    #: For the log, and for people.
    reason: str = text("reason", default="")
    #: A log that ends before this position must not lead: it lacks acknowledged messages.
    position: int = int64("position", default=0)
    #: The master itself asks: the slave first copies its tables too.
    handed_over: bool = boolean("handedOver", default=False)
    #: By the slave's own clock, as sent with its epochs: a promotion that is not on its disk by then must never be. The
    #: asker has continued without it. 0: no deadline.
    deadline_ms: int = int64("deadlineMillis", default=0)
    #: Lead although other brokers may have acknowledged messages that this one lacks: a person, or the master that lost
    #: the end of its log, knows better.
    force: bool = boolean("force", default=False)


@dataclass(slots=True, kw_only=True)
class Promoted(Response):
    epoch: int = int64("epoch")
    #: From here on it leads: everything below is in its log.
    position: int = int64("position")
    role: str = text("role")


@dataclass(slots=True, kw_only=True)
class StepDown(RoleRequest):
    """To a master that lives: hand over to this slave, and become a slave. Nothing that was acknowledged is lost.

    It is answered after the promotion of the slave; if that fails or takes too long, the master continues to lead.
    """

    CODE = RequestCode.STEP_DOWN

    #: The address of the slave, as clients know it.
    to: str = text("to")
    #: The longest wait for the slave to have everything, a minute at most. Sends are refused in this time.
    timeout_ms: int = int32("timeoutMillis", default=10_000)
    #: The new role of the slave, ASYNC_MASTER or SYNC_MASTER; None: the role of this broker.
    role: str | None = text("role", default=None)
    reason: str = text("reason", default="")


@dataclass(slots=True, kw_only=True)
class SteppedDown(Response):
    #: The number under which the other one leads.
    epoch: int = int64("epoch")
    position: int = int64("position")
    #: The new id of this broker.
    broker_id: int = int64("brokerId")


@dataclass(slots=True, kw_only=True)
class RestartBroker(RoleRequest):
    """To any broker: stop and start again in the same process, as what you are. It is answered first."""

    CODE = RequestCode.RESTART_BROKER

    reason: str = text("reason", default="")


@dataclass(slots=True, kw_only=True)
class ForgetMember(RoleRequest):
    """To any broker: another broker of this name is gone for good, and is neither asked nor waited for any more."""

    CODE = RequestCode.FORGET_MEMBER

    #: The address of that broker, or the member id of its store.
    member: str = text("member")
    reason: str = text("reason", default="")


@dataclass(slots=True, kw_only=True)
class ForgotMember(Response):
    #: The members that are known still: address and broker id of each.
    members: str = text("members", default="")


@dataclass(slots=True, kw_only=True)
class GetTimerCheckPoint(Request):
    """Sent by RocketMQ's slaves every few seconds. There are no timers of that kind here."""

    CODE = RequestCode.GET_TIMER_CHECK_POINT


@dataclass(slots=True, kw_only=True)
class GetTimerMetrics(Request):
    CODE = RequestCode.GET_TIMER_METRICS


register(GetBrokerEpochs, PromoteBroker, StepDown, RestartBroker, ForgetMember, GetTimerCheckPoint, GetTimerMetrics)
