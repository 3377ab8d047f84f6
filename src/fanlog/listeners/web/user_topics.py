"""The topic of a user: messages to one user are records of a topic, so that they can be recovered
like all others."""

from __future__ import annotations

from fanlog.broker.names import check_public_name
from fanlog.errors import InvalidArgumentError


def user_topic(template: str, user: str) -> str:
    """The topic of a user's own messages, by `web.user_topic`.

    >>> user_topic("user.{user}", "ann")
    'user.ann'
    """
    if not user:
        raise InvalidArgumentError("A user has a name: give one.")
    return check_public_name(template.replace("{user}", user))
