"""The gate lets in who shows the right secret, for as long as it is right."""

from __future__ import annotations

import msgspec
import pytest

from fanlog.errors import ForbiddenError, RateLimitedError, UnauthenticatedError
from fanlog.identity import Account, Identity, Login, Role, Rules, Verb
from fanlog.security import passwords
from fanlog.security.directory import Directory, KeyEntry, OldSecret, UserEntry
from fanlog.security.gate import SecurityGate
from fanlog.security.keys import digest_of, make_key, maybe_parse, new_secret

SECOND_US = 1_000_000
WHO = Identity(address="1.2.3.4:5", listener="native")
READER = Rules(role=Role.CONSUMER)


class Clock:
    now_us = 1_000 * SECOND_US

    def __call__(self) -> int:
        return self.now_us


class Served:
    def __init__(self) -> None:
        self.clock = Clock()
        self.directory = Directory()
        self.gate = SecurityGate(self.directory, self.clock)

    def key(self, name: str = "shop", **more: object) -> tuple[str, KeyEntry]:
        text = make_key()
        parsed = maybe_parse(text)
        assert parsed is not None
        made = {"rules": READER, **more}
        entry = KeyEntry(name=name, id=parsed.id, digest=digest_of(parsed.secret), **made)  # type: ignore[arg-type]
        self.directory.put(entry)
        return text, entry

    async def refused(self, login: Login) -> None:
        with pytest.raises(UnauthenticatedError):
            await self.gate.login(login, WHO)


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG2_N", 10)


async def test_a_key_lets_in_and_a_changed_letter_does_not(served: Served) -> None:
    text, entry = served.key()
    who = await served.gate.login(Login(key=text), WHO)
    assert who.user == "shop"
    assert who.account is not None
    assert (who.account.kind, who.account.id) == ("key", entry.id)
    assert (await served.gate.login(Login(token=text), WHO)).account is who.account
    for at in (0, 5, 14, 20, len(text) - 2):
        other = "A" if text[at] != "A" else "B"
        await served.refused(Login(key=text[:at] + other + text[at + 1 :]))
    for wrong in (text + "A", text[:-1], text + "\n", "x", "fl__", "é" * 57, "a" * 20_000):
        await served.refused(Login(key=wrong))
    assert served.gate.failures == 12
    assert served.gate.logins == 2


async def test_who_shows_nothing_is_told_what_to_do(served: Served) -> None:
    with pytest.raises(UnauthenticatedError, match="fanlog key create"):
        served.gate.arrive(WHO)
    with pytest.raises(UnauthenticatedError, match="fanlog key create"):
        await served.gate.login(Login(), WHO)
    with pytest.raises(ForbiddenError):
        served.gate.authorize(WHO, Verb.SUBSCRIBE, "a")


async def test_a_revoked_key_is_renewed_to_nobody(served: Served) -> None:
    text, entry = served.key()
    who = await served.gate.login(Login(key=text), WHO)
    assert served.gate.renew(who) is who
    served.key("other")
    assert served.gate.renew(who) is who, "a change of another key changes nothing here"
    served.directory.put(msgspec.structs.replace(entry, rules=Rules(role=Role.VIEWER)))
    renewed = served.gate.renew(who)
    assert renewed is not None
    assert renewed.account is not None
    assert renewed.account.rules.role is Role.VIEWER
    served.directory.remove(entry)
    assert served.gate.renew(who) is None
    await served.refused(Login(key=text))


async def test_the_old_secret_of_a_rotated_key_is_good_for_a_while(served: Served) -> None:
    text, entry = served.key()
    before = await served.gate.login(Login(key=text), WHO)
    until_us = served.clock.now_us + 60 * SECOND_US
    fresh = new_secret(entry.id)
    parsed = maybe_parse(fresh)
    assert parsed is not None
    served.directory.put(
        msgspec.structs.replace(
            entry, digest=digest_of(parsed.secret), old=(OldSecret(entry.digest, until_us),)
        )
    )
    after = await served.gate.login(Login(key=fresh), WHO)
    old = await served.gate.login(Login(key=text), WHO)
    assert old.account is not None
    assert old.account.expires_us == until_us
    assert not served.gate.expired()
    served.clock.now_us = until_us + SECOND_US
    assert served.gate.expired()
    assert not served.gate.expired()
    assert served.gate.renew(before) is None
    assert served.gate.renew(old) is None
    assert served.gate.renew(after) is after
    await served.refused(Login(key=text))


async def test_a_key_expires(served: Served) -> None:
    text, _ = served.key(expires_us=served.clock.now_us + SECOND_US)
    who = await served.gate.login(Login(key=text), WHO)
    served.clock.now_us += 2 * SECOND_US
    assert served.gate.expired()
    assert served.gate.renew(who) is None
    await served.refused(Login(key=text))


async def test_a_user_logs_in_with_a_password(served: Served) -> None:
    kept = passwords.hash_password("correct horse")
    user = UserEntry(name="ann", rules=READER, password=kept)
    served.directory.put(user)
    who = await served.gate.login(Login(user="ann", password="correct horse"), WHO)
    for name, password in (("ann", "wrong"), ("bob", "correct horse"), ("ann", ""), ("", "x")):
        await served.refused(Login(user=name, password=password))
    assert served.gate.renew(who) is who
    served.directory.put(msgspec.structs.replace(user, comment="x"))
    assert served.gate.renew(who) is not None
    served.directory.put(
        msgspec.structs.replace(user, password=passwords.hash_password("another one"))
    )
    assert served.gate.renew(who) is None, "a new password ends what the old one opened"
    served.directory.put(msgspec.structs.replace(user, disabled=True))
    await served.refused(Login(user="ann", password="correct horse"))
    served.directory.put(msgspec.structs.replace(user, password=""))
    await served.refused(Login(user="ann", password=""))
    served.gate.close()


async def test_a_certificate_is_a_user_that_names_it(served: Served) -> None:
    user = UserEntry(name="ann", rules=READER, certificates=("ann.example",))
    served.directory.put(user)
    who = served.gate.certified(["x", "ANN.example"], WHO)
    assert who is not None
    assert who.user == "ann"
    assert served.gate.certified(["ann"], WHO) is None
    assert served.gate.renew(who) is who
    served.directory.put(msgspec.structs.replace(user, certificates=("bob.example",)))
    assert served.gate.renew(who) is None
    assert served.gate.certified(["ann.example"], WHO) is None


async def test_what_is_left_of_a_damaged_ledger_lets_nobody_in(served: Served) -> None:
    mine, _ = served.key("file", source="file")
    text, _ = served.key("api")
    who = await served.gate.login(Login(key=text), WHO)
    served.directory.load([], distrust=True)
    await served.refused(Login(key=text))
    assert served.gate.renew(who) is None
    assert (await served.gate.login(Login(key=mine), WHO)).user == "file"


async def test_a_hundred_thousand_users_cost_no_more_than_one(served: Served) -> None:
    def user(number: int, **more: object) -> UserEntry:
        names = (f"u{number}.example",)
        return UserEntry(name=f"u{number}", rules=READER, certificates=names, **more)  # type: ignore[arg-type]

    told: list[None] = []
    served.directory.on_change.append(lambda: told.append(None))
    served.directory.load(user(number) for number in range(100_000))
    assert len(told) == 1
    who = served.gate.certified(["u77777.example"], WHO)
    assert who is not None
    # Each of these would take minutes together if it looked at all of them.
    for number in range(10_000):
        served.directory.put(user(number, comment="x"))
        assert served.gate.renew(who) is who
    names = served.directory.names("user")
    assert served.directory.names("user") is names
    served.directory.remove(user(77777))
    assert served.gate.renew(who) is None
    assert len(served.directory.names("user")) == 99_999


class Tokens:
    async def verify(self, token: str, /) -> Account | None:
        if not token.startswith("t:"):
            return None
        return Account(name=token[2:], kind="token", rules=READER, expires_us=2_000 * SECOND_US)

    def renew(self, account: Account, /) -> Account | None:
        return account


class Locked:
    def __init__(self) -> None:
        self.wrong = 0

    def check(self, login: Login, who: Identity, /) -> None:
        if self.wrong >= 2:
            raise RateLimitedError("Wait.")

    def failed(self, login: Login, who: Identity, /) -> None:
        self.wrong += 1

    def succeeded(self, login: Login, who: Identity, /) -> None:
        self.wrong = 0


async def test_tokens_and_lock_outs_are_plugged_in(served: Served) -> None:
    await served.refused(Login(token="t:ann"))
    served.gate.verifiers.append(Tokens())
    served.gate.guards.append(Locked())
    who = await served.gate.login(Login(token="t:ann"), WHO)
    assert served.gate.renew(who) is who
    served.clock.now_us = 2_001 * SECOND_US
    assert served.gate.expired()
    assert served.gate.renew(who) is None
    for _ in range(2):
        await served.refused(Login(token="x"))
    with pytest.raises(RateLimitedError):
        await served.gate.login(Login(token="t:ann"), WHO)


def test_secrets_do_not_show_themselves(served: Served) -> None:
    text, entry = served.key()
    parsed = maybe_parse(text)
    assert parsed is not None
    shown = f"{Login(key=text)!r} {parsed!r} {entry!r}"
    shown += repr(Login(user="ann", password="pass word"))
    assert parsed.secret not in shown
    assert entry.digest not in shown
    assert "pass word" not in shown


@pytest.mark.parametrize(
    "kept",
    ["", "scrypt", "scrypt$15$8$1$!$x", "scrypt$40$8$1$AAAAAAAAAAAA$" + "A" * 43, "md5$1$1$1$a$a"],
)
def test_a_hash_that_is_none_matches_nothing(kept: str) -> None:
    assert not passwords.is_hash(kept)
    assert not passwords.matches("", kept)
