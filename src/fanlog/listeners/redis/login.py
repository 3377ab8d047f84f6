"""AUTH and HELLO … AUTH: who a Redis client is.

| AUTH             | is                                                      |
| ---------------- | ------------------------------------------------------- |
| `fl_…`           | a key                                                   |
| `NAME fl_…`      | a key of that name; `default` fits every key            |
| `NAME PASSWORD`  | a user                                                  |
| `PASSWORD`       | that of the user `default`, or `redis.password`         |
| a JSON Web Token | a token, with any name before it                        |
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from fanlog.errors import FanlogError, RateLimitedError, UnauthenticatedError
from fanlog.format.resp_replies import ErrorReply, RespReply
from fanlog.identity import Account, Login, Rules
from fanlog.listeners.redis.peer import RedisPeer
from fanlog.security.keys import PREFIX

logger = logging.getLogger("fanlog.listeners")

DEFAULT_USER = b"default"
# The account for `redis.password` on a broker with logins: it publishes to and reads all channels.
DEFAULT_ACCOUNT = Account(
    name=DEFAULT_USER.decode(),
    kind="anonymous",
    rules=Rules(publish=(">",), subscribe=(">",)),
)
WRONG_PASSWORD = ErrorReply("WRONGPASS invalid username-password pair or user is disabled.")
NO_PASSWORD = ErrorReply(
    "ERR AUTH <password> called without any password configured for the default user. Are you "
    "sure your configuration is correct?"
)
_NOT_IN_MULTI = ErrorReply("ERR Command not allowed inside a transaction")
# How every JSON Web Token begins: an object in base64.
_TOKEN_BEGIN = "eyJ"


def log_in(
    session: RedisPeer, user: bytes, password: bytes, then: Callable[[], RespReply]
) -> RespReply:
    """Logs a client in and answers with `then`, or with the error. If that takes a while, the reply
    follows, and later commands wait."""
    gate = session.state.broker.gate
    if not gate.guarded:
        return _by_password(session, user, password) or then()
    if session.in_transaction:
        return _NOT_IN_MULTI

    async def work() -> RespReply:
        return await _by_gate(session, user, password) or then()

    return session.wait_for(work())


def _by_password(session: RedisPeer, user: bytes, password: bytes) -> ErrorReply | None:
    """Without accounts: there is one password, or none."""
    wanted = session.state.options.password.encode()
    watch, who = session.state.broker.metering.logins, session.arrived
    audit = session.state.broker.audit
    login = Login(user=_text(user), password=_text(password))
    try:
        watch.check(login, who)
    except RateLimitedError as fault:
        return ErrorReply(f"ERR {fault}")
    if user != DEFAULT_USER or (wanted and not hmac.compare_digest(password, wanted)):
        logger.debug("%s: a wrong password", session.peer)
        watch.failed(login, who)
        audit.note(who, "login", login.user, "failed", "password")
        return WRONG_PASSWORD
    watch.succeeded(login, who)
    if wanted:
        audit.note(who, "login", login.user, "ok", "password")
    session.trusted = True
    return None


async def _by_gate(session: RedisPeer, user: bytes, password: bytes) -> ErrorReply | None:
    broker, who = session.state.broker, session.arrived
    wanted = session.state.options.password.encode()
    try:
        if wanted and user == DEFAULT_USER:
            broker.metering.logins.check(Login(user=_text(user), password=_text(password)), who)
            if hmac.compare_digest(password, wanted):
                session.become(DEFAULT_ACCOUNT)
                _cut_off(session)
                broker.audit.note(who, "login", _text(user), "ok", "password")
                return None
        found = await broker.gate.login(_login(user, password), who)
        account = found.account
        if account is None or not _fits(account, user):
            return WRONG_PASSWORD
        session.become(account)
        _cut_off(session)
    except UnauthenticatedError:
        logger.debug("%s: a wrong login", session.peer)
        return WRONG_PASSWORD
    except FanlogError as fault:
        return ErrorReply(f"ERR {fault}")
    return None


def _cut_off(session: RedisPeer) -> None:
    """A client that logs in again may still follow channels that only its earlier account could
    read. It would keep them, whatever happens to that account."""
    forbidden = session.maybe_forbidden()
    if forbidden is not None:
        session.outlet.evict(forbidden)


def _login(user: bytes, password: bytes) -> Login:
    name, secret = _text(user), _text(password)
    if secret.startswith(PREFIX):
        return Login(key=secret)
    if secret.startswith(_TOKEN_BEGIN) and secret.count(".") == 2:
        return Login(token=secret)
    return Login(user=name, password=secret)


def _fits(account: Account, user: bytes) -> bool:
    """Whether a name that goes with a key is that of the key."""
    return account.kind != "key" or user in (DEFAULT_USER, account.name.encode())


def _text(word: bytes) -> str:
    return word.decode(errors="backslashreplace")
