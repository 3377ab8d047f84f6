"""What a program can do with the browsers of all web listeners: send to a user, broadcast, list
connections and the users in a topic, and disconnect users. Requests to the listeners need the
permission `admin`, and publishing needs the permission to publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from fanlog.client.asking import Asker
from fanlog.client.publishing import Headers, Value
from fanlog.client.signals import SignalClient, Signals
from fanlog.client.values import Encoding
from fanlog.errors import InvalidArgumentError, NoRespondersError
from fanlog.format.patterns import is_pattern
from fanlog.format.signals import WEB_CHANNEL, SignalAnswer, SignalAsk
from fanlog.model import PresenceInfo, Receipt, TopicInfo, WebConnectionInfo

# Connections in one page of the list.
_PAGE = 500
# Topics that a broadcast publishes to at a time.
_TOGETHER = 500


class WebClient(SignalClient, Protocol):
    """The client, as far as these calls need it."""

    async def topics(self, pattern: str) -> list[TopicInfo]: ...


class Web:
    """Browsers, as a program sees them. It is `client.web`.

    >>> await client.web.send_to_user("ann", {"text": "Your order is ready"})  # doctest: +SKIP
    >>> await client.web.broadcast("room.*", "We close in five minutes")  # doctest: +SKIP
    >>> await client.web.disconnect("mallory", reason="banned")  # doctest: +SKIP
    """

    def __init__(self, client: WebClient) -> None:
        self._client = client

    async def send_to_user(
        self,
        user: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
        user_topic: str = "user.{user}",
    ) -> Receipt:
        """Publishes a message to the topic of a user. All of the user's connections that follow
        `$user` get it, and a lost connection gets it when it is back. `user_topic` is the value of
        the setting `web.user_topic`.

        >>> await client.web.send_to_user("ann", {"text": "Your order is ready"})  # doctest: +SKIP
        """
        if not user:
            raise InvalidArgumentError("A user needs a name: give one.")
        topic = user_topic.replace("{user}", user)
        return await self._client.publish(topic, value, key=key, headers=headers, encoding=encoding)

    async def broadcast(
        self,
        pattern: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        encoding: Encoding | None = None,
    ) -> list[Receipt]:
        """Publishes one message to every topic that matches a pattern; the receipt of each. It
        creates no topic. The name of one topic publishes to that one.

        >>> receipts = await client.web.broadcast("room.*", "We close soon")  # doctest: +SKIP
        """
        names = [pattern]
        if is_pattern(pattern):
            names = [topic.name for topic in await self._client.topics(pattern)]
        receipts: list[Receipt] = []
        for at in range(0, len(names), _TOGETHER):
            receipts += await asyncio.gather(
                *(
                    self._client.publish(name, value, key=key, headers=headers, encoding=encoding)
                    for name in names[at : at + _TOGETHER]
                )
            )
        return receipts

    async def disconnect(
        self,
        user: str = "",
        *,
        connection: str = "",
        reason: str = "",
        reconnect: bool = False,
        timeout_seconds: float = 2.0,
    ) -> int:
        """Closes all connections of a user, or one `connection`, on all processes; how many there
        were. The clients do not come back by themselves, unless `reconnect` asks them to. Nothing
        keeps the user from connecting again.

        >>> await client.web.disconnect("mallory", reason="banned")  # doctest: +SKIP
        2
        """
        if bool(user) == bool(connection):
            raise InvalidArgumentError("Name a user or a connection to disconnect, and not both.")
        asked = SignalAsk(
            "-",
            "disconnect",
            user=user or None,
            connection=connection,
            reason=reason,
            reconnect=reconnect,
        )
        return sum(one.count for one in await self._ask(asked, timeout_seconds))

    async def connections(
        self, *, user: str | None = None, timeout_seconds: float = 2.0
    ) -> AsyncIterator[WebConnectionInfo]:
        """The connections of all processes, or those of a user, by id.

        >>> async for connection in client.web.connections():  # doctest: +SKIP
        ...     print(connection.user, connection.address, connection.subscriptions)
        """
        after = ""
        while True:
            asked = SignalAsk("-", "connections", user=user, after=after, limit=_PAGE)
            answers = await self._ask(asked, timeout_seconds)
            found = sorted((c for one in answers for c in one.connections), key=lambda c: c.id)[
                :_PAGE
            ]
            for connection in found:
                yield connection
            if len(found) < _PAGE:
                return
            after = found[-1].id

    async def presence(self, topic: str, *, timeout_seconds: float = 2.0) -> PresenceInfo:
        """Who is in a topic, on all processes.

        >>> room = await client.web.presence("room.7")  # doctest: +SKIP
        >>> room.count, [user.user for user in room.users or ()]  # doctest: +SKIP
        (2, ['ann', 'bob'])
        """
        # Each process knows everybody: one answer is enough.
        answers = await self._ask(
            SignalAsk("-", "presence", topic=topic), timeout_seconds, enough=1
        )
        return msgspec.json.decode(answers[0].presence, type=PresenceInfo)

    async def _ask(
        self, asked: SignalAsk, timeout_seconds: float, *, enough: int = 0
    ) -> list[SignalAnswer]:
        signals = Signals(self._client)
        asker = Asker(lambda data: signals.send(WEB_CHANNEL, data))
        signals.on(WEB_CHANNEL, asker.hear_signal)
        await signals.open()
        try:
            answers = await asker.ask(asked, timeout_seconds, enough=enough)
        finally:
            await signals.close()
        if not answers:
            raise NoRespondersError(
                f"No web listener answered within {timeout_seconds} s. Check that one runs: "
                "`fanlog serve` opens one unless --http-port is -1, and `fanlog edge` does."
            )
        return answers
