"""The attributes of the blocking client, such as `client.groups` and `client.web`, each in front of
the asyncio client's own."""

from __future__ import annotations

from fanlog.client.accounts import Accounts
from fanlog.client.blocking.front import LoopFront, blocking, each
from fanlog.client.dead_letters import DeadLetters
from fanlog.client.groups.operators import Groups
from fanlog.client.operators import Connections
from fanlog.client.web import Web


class BlockingAccounts(LoopFront[Accounts]):
    """`client.accounts`; see the asyncio client."""

    create_key = blocking(Accounts.create_key)
    set_key = blocking(Accounts.set_key)
    rotate_key = blocking(Accounts.rotate_key)
    revoke_key = blocking(Accounts.revoke_key)
    key = blocking(Accounts.key)
    keys = blocking(Accounts.keys)
    create_user = blocking(Accounts.create_user)
    set_user = blocking(Accounts.set_user)
    set_password = blocking(Accounts.set_password)
    delete_user = blocking(Accounts.delete_user)
    user = blocking(Accounts.user)
    users = blocking(Accounts.users)
    may = blocking(Accounts.may)


class BlockingConnections(LoopFront[Connections]):
    """Open connections of one process. It is `client.connections`; see the asyncio client."""

    list = each(Connections.list)
    close = blocking(Connections.close)


class BlockingDeadLetters(LoopFront[DeadLetters]):
    """`client.dead_letters`; see the asyncio client."""

    topics = blocking(DeadLetters.topics)
    scan = each(DeadLetters.scan)
    list = blocking(DeadLetters.list)
    show = blocking(DeadLetters.show)
    replay = blocking(DeadLetters.replay)
    delete = blocking(DeadLetters.delete)
    purge = blocking(DeadLetters.purge)
    export = each(DeadLetters.export)


class BlockingGroups(LoopFront[Groups]):
    """Groups, for operators. It is `client.groups`."""

    list = blocking(Groups.list)
    describe = blocking(Groups.describe)
    reset = blocking(Groups.reset)
    delete = blocking(Groups.delete)


class BlockingWeb(LoopFront[Web]):
    """`client.web`; see the asyncio client."""

    send_to_user = blocking(Web.send_to_user)
    broadcast = blocking(Web.broadcast)
    disconnect = blocking(Web.disconnect)
    connections = each(Web.connections)
    presence = blocking(Web.presence)
