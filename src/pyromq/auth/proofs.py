"""Proofs between brokers of one name and their tools: the text of each proof, in one place.

GET_BROKER_EPOCH_CACHE (1007). The asker sends a nonce of its own, its member id, and a proof; the answer carries a
proof over the asker's nonce and the whole body, in the header field `proof`. A replayed question is harmless: it names
only an address that a holder of the secret named, and that address has to prove itself when it is asked.

Role requests (17001 and following). The asker first asks for the epochs: the answer has a nonce that the broker issued.
The proof covers that nonce, the code, every field and the body, so that a captured request works neither again, nor on
another broker, nor with other fields.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator

from pyromq.auth.group_secret import GroupSecret
from pyromq.wire.bodies.epochs import BrokerEpochs
from pyromq.wire.command import Command
from pyromq.wire.fields import write_fields
from pyromq.wire.requests.roles import GetBrokerEpochs, RoleRequest

QUESTION, ANSWER, ROLE_REQUEST = "epochs-question", "epochs-answer", "role-request"
#: The header field of an answer.
PROOF = "proof"


# --- who led: question and answer ------------------------------------------------------------------------------------


def prove_question(secret: GroupSecret | None, request: GetBrokerEpochs, cluster: str = "") -> None:
    """Put a nonce into a question, and a proof if there is a secret."""
    request.cluster, request.nonce = cluster, secrets.token_hex(16)
    if secret is not None:
        request.proof = secret.proof(QUESTION, *_question(request))


def is_question_proved(secret: GroupSecret | None, request: GetBrokerEpochs) -> bool:
    if secret is None or not request.proof or not request.nonce:
        return False
    return secret.verify(request.proof, QUESTION, *_question(request))


def _question(request: GetBrokerEpochs) -> Iterator[str]:
    for one in (request.nonce, request.cluster, request.name, request.member, request.broker_id, request.address):
        yield "" if one is None else f"={one}"


def proof_of_answer(secret: GroupSecret, nonce: str, body: bytes) -> str:
    return secret.proof(ANSWER, nonce, hashlib.sha256(body).hexdigest())


def is_answer_proved(secret: GroupSecret | None, request: GetBrokerEpochs, answer: Command) -> bool:
    """Return whether an answer to this very question comes from a holder of the secret."""
    proof = answer.fields.get(PROOF)
    if secret is None or not proof or not request.nonce:
        return False
    digest = hashlib.sha256(bytes(answer.body)).hexdigest()
    return secret.verify(proof, ANSWER, request.nonce, digest)


async def ask_for_epochs(
    ask: Callable[[GetBrokerEpochs], Awaitable[Command]], secret: GroupSecret | None
) -> tuple[BrokerEpochs, bool]:
    """Ask a broker as a tool does: what it says of its log, and whether it has proved the secret."""
    request = GetBrokerEpochs()
    prove_question(secret, request)
    answer = await ask(request)
    return BrokerEpochs.decode(bytes(answer.body)), is_answer_proved(secret, request, answer)


# --- who leads: role requests ----------------------------------------------------------------------------------------


def prove_role_request(secret: GroupSecret, request: RoleRequest, nonce: str) -> None:
    """Put a nonce that the broker issued into a role request, and the proof."""
    request.nonce = nonce
    request.proof = secret.proof(ROLE_REQUEST, *_role_request(request))


def is_role_request_proved(secret: GroupSecret, request: RoleRequest) -> bool:
    """Return whether its proof is one. Whether its nonce is good is for the broker that issued it to say."""
    return secret.verify(request.proof, ROLE_REQUEST, *_role_request(request))


def _role_request(request: RoleRequest) -> Iterator[str]:
    yield request.nonce
    yield str(int(request.CODE))
    yield hashlib.sha256(request.body).hexdigest()
    for name, value in sorted(write_fields(request).items()):
        if name != PROOF:
            yield name
            yield value
