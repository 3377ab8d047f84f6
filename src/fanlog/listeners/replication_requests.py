"""Requests of followers: another node of the cluster wants everything that the primary appends. A
link ends with its connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanlog.broker.ports import FollowerPort
from fanlog.errors import ProtocolError, UnavailableError
from fanlog.format.frames import FrameKind
from fanlog.format.messages import decode
from fanlog.format.replication import Follow, ReplicaEnds, read_applied
from fanlog.identity import Verb

if TYPE_CHECKING:
    from fanlog.listeners.request_session import NativeHandler, RequestSession


def follow(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    wanted = decode(Follow, payload)
    session.permit.ask(Verb.ADMIN, "")
    followers = session.broker.followers
    if followers is None:
        raise UnavailableError(
            "This node is not the primary of a cluster, so that nobody can follow it. Ask the "
            "primary."
        )
    if session.follower is not None:
        raise ProtocolError("This connection follows already.")
    followed, link = followers.follow(wanted, session.outlet)
    session.follower = link
    session.at_close["follower"] = link.gone
    session.answer(request, followed)
    link.begin()


def _link(session: RequestSession) -> FollowerPort:
    if session.follower is None:
        raise ProtocolError("This connection does not follow: FOLLOW comes first.")
    return session.follower


def ends(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    _link(session).ends(decode(ReplicaEnds, payload))


def applied(session: RequestSession, request: int, aux: int, payload: memoryview) -> None:
    _link(session).take_applied(read_applied(payload))


HANDLERS: dict[FrameKind, NativeHandler] = {
    FrameKind.FOLLOW: follow,
    FrameKind.REPLICA_ENDS: ends,
    FrameKind.APPLIED: applied,
}
