"""Finds the broker address of the master whose log a slave copies: known, sent by its replication port, or guessed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets

from pyromq.broker.failover.members import Others
from pyromq.broker.failover.role import Leading
from pyromq.config import BrokerConfig
from pyromq.errors import BadFrame
from pyromq.net.address import is_address, parse_address, shown_address
from pyromq.replication.address_question import AddressQuestion
from pyromq.replication.handshake import Hello
from pyromq.replication.identity import Refused

log = logging.getLogger("pyromq.broker")

#: A primary of ours answers at once; one of Apache RocketMQ's says nothing before its first heartbeat, after 5 s.
ANSWER_SECONDS = 1.0


class MasterAddress:
    """Of the master of one slave."""

    def __init__(self, config: BrokerConfig, leading: Leading, others: Others, process: str) -> None:
        """`process` names this process: see `Identity`."""
        self._config = config
        self._leading = leading
        self._others = others
        self._process = process
        #: Guessed addresses where no broker answered.
        self._guessed: set[str] = set()

    def guess(self, ha_address: str, told_at: tuple[str, str | None] | None) -> tuple[str, bool]:
        """Return the address of the broker with this replication address, and whether it is known, not guessed.

        `told_at`: a replication address and the broker address that was told with it.
        """
        if told_at is not None and told_at[0] == ha_address and told_at[1]:
            return told_at[1], True
        for member in self._leading.known.members:
            if member.ha_address == ha_address:
                return member.address, True
        replication = self._config.replication
        masters = [one.address for one in replication.configured_members if one.broker_id == 0]
        if masters and ha_address == replication.primary:
            return masters[0], True
        host, port = parse_address(ha_address)
        return shown_address(host, port - 1), False

    async def ask_replication_port(self, ha_address: str, *, is_certain: bool) -> str | None:
        """Return where the master answers, as its replication port proves; `None` if it does not.

        It is not asked if the broker address `is_certain` and our log has no epochs: it may be Apache RocketMQ's.
        """
        config, secret = self._config, self._others.trust.secret
        if secret is None or (is_certain and not self._leading.epochs):
            return None
        hello = Hello(
            cluster=config.cluster, name=config.name, member=self._leading.known.member, broker_id=config.broker_id,
            address=self._others.own_address, process=self._process, nonce=secrets.token_hex(16), start=0, end=0,
            digest_from=0, digest="",
        )  # fmt: skip
        return await _ask(ha_address, AddressQuestion(hello, secret))

    def warn_of_guess(self, ha_address: str, address: str) -> None:
        """Log once that no broker answers at a guessed address."""
        if address not in self._guessed:
            self._guessed.add(address)
            log.warning(
                "no broker answers at %s, the port below the replication address %s, and that port does not prove "
                "where its broker answers: its log is copied, and neither topics nor groups nor progress, and this "
                "slave counts for no acknowledgement. Give both brokers the same secret file "
                "(replication.secret_file), or name the master in replication.members (0@HOST:PORT)",
                address, ha_address,
            )  # fmt: skip


async def _ask(ha_address: str, question: AddressQuestion) -> str | None:
    """Return the address that a replication port tells; `None` if it tells none, or cannot prove the secret."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*parse_address(ha_address))
            writer.write(question.first())
            while question.address is None and (data := await reader.read(1 << 16)):
                writer.write(question.received(data))
    except (BadFrame, Refused) as problem:
        log.warning("%s does not tell where its broker answers: %s", ha_address, problem)
    except (OSError, TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return question.address if question.address is not None and is_address(question.address) else None
