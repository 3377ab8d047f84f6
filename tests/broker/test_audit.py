"""The audit log: what is noted, by whom, and how it is written."""

from __future__ import annotations

import pytest

from fanlog.broker.audit import NO_AUDIT
from fanlog.broker.authority import Permit, forbidden
from fanlog.broker.ports import Audit, AuditResult, Authority
from fanlog.errors import ForbiddenError
from fanlog.identity import Identity, Verb

WHO = Identity("ana", "127.0.0.1:5000", "native", "127.0.0.1:5000")
Noted = tuple[str, str, str, str]


class Notes:
    """An audit log that keeps what is noted."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    def note(
        self, who: Identity, action: str, name: str, result: AuditResult, detail: str = "", /
    ) -> None:
        self.noted.append((who.user, action, name, result))


class Nobody:
    """An authority that allows nothing."""

    def authorize(self, who: Identity, verb: Verb, name: str, /) -> None:
        raise forbidden(who, verb, name)


class Asked:
    """A broker, as permits need it."""

    def __init__(self, audit: Audit) -> None:
        self.authority: Authority = Nobody()
        self.audit = audit
        self.permissions_epoch = 0


def test_what_a_permit_refuses_is_noted_with_who_asked() -> None:
    notes = Notes()
    permit = Permit(Asked(notes), WHO)
    with pytest.raises(ForbiddenError):
        permit.ask(Verb.MANAGE, "orders")
    assert notes.noted == [("ana", "manage", "orders", "denied")]


def test_a_look_at_what_one_may_see_is_not_noted() -> None:
    notes = Notes()
    permit = Permit(Asked(notes), WHO)
    assert not permit.may(Verb.DESCRIBE, "orders")
    assert notes.noted == []


def test_one_of_several_verbs_is_noted_once() -> None:
    notes = Notes()
    with pytest.raises(ForbiddenError):
        Permit(Asked(notes), WHO).ask_any((Verb.PUBLISH, Verb.SUBSCRIBE), "orders")
    assert notes.noted == [("ana", "publish", "orders", "denied")]


def test_a_refused_publisher_is_noted_once_until_permissions_change() -> None:
    notes = Notes()
    broker = Asked(notes)
    permit = Permit(broker, WHO)
    for _ in range(3):
        assert isinstance(permit.may_publish("orders"), ForbiddenError)
    assert notes.noted == [("ana", "publish", "orders", "denied")]
    broker.permissions_epoch += 1
    permit.may_publish("orders")
    assert len(notes.noted) == 2


def test_without_an_audit_log_nothing_is_kept() -> None:
    with pytest.raises(ForbiddenError):
        Permit(Asked(NO_AUDIT), WHO).ask(Verb.MANAGE, "orders")
