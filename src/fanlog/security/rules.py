"""What an account may do: its role, its lists, and nothing else. Answers are kept per account, so
that a publish costs one look into a dict.

| role     | publish | subscribe | manage | groups, queues | describe | names  | presence |
| -------- | ------- | --------- | ------ | -------------- | -------- | ------ | -------- |
| admin    | all     | all       | all    | all            | all      | all    | all      |
| producer | public  | list      | list   | list           | public   | public | list     |
| consumer | list    | public    | list   | public         | public   | list   | public   |
| viewer   | -       | public    | -      | see, not join  | public   | -      | public   |
| observer | -       | -         | -      | see, not join  | public   | -      | -        |

"public" is all but the broker's own topics, and a list in the rules replaces it. "list": only what
a list names. "names" are those of producers, transactions and schedules.
"""

from __future__ import annotations

from typing import NamedTuple

from fanlog.errors import ForbiddenError, InvalidArgumentError
from fanlog.format.dead_letters import TOPIC_PREFIX as DEAD_LETTER_PREFIX
from fanlog.format.patterns import is_pattern, meet
from fanlog.identity import Account, Identity, Role, Rules, Verb
from fanlog.model import INBOX_PREFIX, INTERNAL_PREFIX
from fanlog.security.patterns import DENY, USER, Patterns, check_patterns

ACCOUNTS_TOPIC = INTERNAL_PREFIX + "accounts"
_EVERYTHING = (">",)
_PUBLISHERS = (Role.PRODUCER,)
_READERS = (Role.CONSUMER, Role.VIEWER)
_WORKERS = (Role.CONSUMER,)
_WATCHERS = (Role.OBSERVER, Role.VIEWER)
# Accounts whose answers are kept, and answers of each: this limits the memory that clients can use.
_ACCOUNTS_MAX = 4096
_ANSWERS_MAX = 4096
_LISTS = ("publish", "subscribe", "manage", "groups", "queues", "describe")
# Which lists make sense for a role that has not all of them.
_LISTS_OF = {
    Role.ADMIN: (),
    # Groups and queues that they see; they join none.
    Role.VIEWER: ("subscribe", "describe", "groups", "queues"),
    Role.OBSERVER: ("describe", "groups", "queues"),
}
# DESCRIBE of a name that begins so is about the state of a group or a queue. No topic's name has a
# character like this one.
_STATES = {"group\0": "groups", "queue\0": "queues"}


def state_of(verb: Verb, name: str) -> str:
    """The name for a DESCRIBE check about a group or a queue."""
    return f"{verb.value}\0{name}"


def check_rules(rules: Rules) -> Rules:
    """The rules, if they make sense."""
    for name in _LISTS:
        patterns: tuple[str, ...] | None = getattr(rules, name)
        if patterns is None:
            continue
        if rules.role is not None and name not in _LISTS_OF.get(rules.role, _LISTS):
            raise InvalidArgumentError(
                f"The role {rules.role.value!r} can't have a list {name!r}: {_WHY_NOT[rules.role]}"
            )
        check_patterns(patterns, name)
    return rules


_WHY_NOT = {
    Role.ADMIN: "an admin may do everything. Leave the list out, or choose another role.",
    Role.VIEWER: "a viewer reads and changes nothing. Choose the role consumer or producer.",
    Role.OBSERVER: "an observer sees topics, but no message. Choose the role viewer or consumer.",
}


class _Lists(NamedTuple):
    """An account's rules, prepared for checks."""

    publish: Patterns
    subscribe: Patterns
    manage: Patterns
    groups: Patterns
    queues: Patterns
    describe: Patterns | None


def _lists(account: Account) -> _Lists:
    rules = account.rules

    def chosen(name: str, roles: tuple[Role, ...]) -> Patterns:
        given: tuple[str, ...] | None = getattr(rules, name)
        # A token may claim more than its role can have: the role wins.
        role = rules.role
        if role in _WATCHERS and role is not None and name not in _LISTS_OF[role]:
            given = None
        default = _EVERYTHING if rules.role in roles else ()
        if given is None:
            return Patterns(default, account.name)
        # A list that only denies reduces what the role allows.
        only_denies = bool(given) and all(pattern.startswith(DENY) for pattern in given)
        return Patterns((*default, *given) if only_denies else given, account.name)

    # An account that may see only some topics sees only the groups that its lists name.
    sees_all = rules.role in _WATCHERS and rules.describe is None and rules.subscribe is None
    workers = (*_WORKERS, *_WATCHERS) if sees_all else _WORKERS
    describe = None
    if rules.describe is not None or rules.role in _WATCHERS:
        describe = chosen("describe", _WATCHERS)
    return _Lists(
        chosen("publish", _PUBLISHERS),
        chosen("subscribe", _READERS),
        chosen("manage", ()),
        chosen("groups", workers),
        chosen("queues", workers),
        describe,
    )


class _AccountDecisions:
    """One account's lists and answers. It holds the account, so that its id stays its own."""

    __slots__ = ("account", "answers", "lists")

    def __init__(self, account: Account) -> None:
        self.account = account
        self.lists = _lists(account)
        self.answers: dict[tuple[Verb, str], bool] = {}


class Decisions:
    """Decides what accounts may do. `user_topic` is the setting `web.user_topic`: every user may
    read the topic with their own messages."""

    def __init__(self, user_topic: str = "") -> None:
        self._user_topic = user_topic if USER in user_topic else ""
        self._kept: dict[int, _AccountDecisions] = {}

    def decide(self, account: Account, verb: Verb, name: str) -> bool:
        """Whether the account may do it. The name may be a pattern."""
        role = account.rules.role
        if role is Role.ADMIN:
            return True
        kept = self._kept.get(id(account))
        if kept is None or kept.account is not account:
            if len(self._kept) >= _ACCOUNTS_MAX:
                self._kept.clear()
            kept = self._kept[id(account)] = _AccountDecisions(account)
        answers = kept.answers
        answer = answers.get((verb, name))
        if answer is None:
            if len(answers) >= _ANSWERS_MAX:
                answers.clear()
            answer = answers[verb, name] = self._judge(account, kept.lists, verb, name)
        return answer

    def forget(self) -> None:
        """Drops all answers: accounts have changed."""
        self._kept.clear()

    def _judge(self, account: Account, lists: _Lists, verb: Verb, name: str) -> bool:
        if name.startswith(INBOX_PREFIX):
            return _may_use_inbox(account, lists, verb, name)
        if self._is_own(account, verb, name):
            return True
        if name.startswith(INTERNAL_PREFIX) and meet(name, ACCOUNTS_TOPIC):
            # It has the hashes of passwords, at which one could guess.
            return False
        return _JUDGES[verb](account, lists, name)

    def _is_own(self, account: Account, verb: Verb, name: str) -> bool:
        """Whether it is about the account's own messages."""
        if verb not in _OWN_VERBS or not self._user_topic or account.rules.role is Role.OBSERVER:
            return False
        own = self._user_topic.replace(USER, account.name)
        return name == own and not is_pattern(name)


_OWN_VERBS = (Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.PRESENCE)


def _may_use_inbox(account: Account, lists: _Lists, verb: Verb, name: str) -> bool:
    """The name of an inbox can't be guessed: a client that knows it received or chose it. A viewer
    may have read it in a request, and must not answer for another."""
    if is_pattern(name) or verb not in (Verb.PUBLISH, Verb.SUBSCRIBE, Verb.DESCRIBE, Verb.MANAGE):
        return False
    if verb in (Verb.PUBLISH, Verb.MANAGE) and account.rules.role in _WATCHERS:
        return False
    return bool(lists.publish or lists.subscribe)


def _may_publish(account: Account, lists: _Lists, name: str) -> bool:
    """Workers store the dead letters of topics that they may read."""
    if lists.publish.allow(name):
        return True
    source = name.removeprefix(DEAD_LETTER_PREFIX)
    if source == name or is_pattern(name) or account.rules.role in _WATCHERS:
        return False
    if lists.publish.deny(name):
        return False
    return bool(lists.groups or lists.queues) and lists.subscribe.allow(source)


def _may_subscribe(account: Account, lists: _Lists, name: str) -> bool:
    return lists.subscribe.allow(name)


def _may_manage(account: Account, lists: _Lists, name: str) -> bool:
    return lists.manage.allow(name)


def _may_describe(account: Account, lists: _Lists, name: str) -> bool:
    """An account that may use a topic, a group or a queue may describe it."""
    rules = account.rules
    if not name:
        return rules.role is not None or bool(lists.describe)
    if "\0" in name:
        return _may_see_state(lists, name)
    if lists.describe is not None and (rules.describe is not None or rules.subscribe is None):
        seen = (lists.describe,)
    else:
        seen = (lists.publish, lists.subscribe, lists.manage)
    return any(patterns.allow(name) for patterns in seen)


def _may_see_state(lists: _Lists, name: str) -> bool:
    for prefix, kind in _STATES.items():
        if name.startswith(prefix):
            patterns: Patterns = getattr(lists, kind)
            return patterns.allow(name.removeprefix(prefix))
    return False


def _may_group(account: Account, lists: _Lists, name: str) -> bool:
    return account.rules.role not in _WATCHERS and lists.groups.allow(name)


def _may_queue(account: Account, lists: _Lists, name: str) -> bool:
    return account.rules.role not in _WATCHERS and lists.queues.allow(name)


def _may_name(account: Account, lists: _Lists, name: str) -> bool:
    """Names of producers, transactions and schedules: of producers any, of others those that are
    named like topics that they may publish to."""
    return account.rules.role is Role.PRODUCER or lists.publish.allow(name)


def _may_act_on_user(account: Account, lists: _Lists, name: str) -> bool:
    return False


def _may_operate(account: Account, lists: _Lists, name: str) -> bool:
    return False


_JUDGES = {
    Verb.PUBLISH: _may_publish,
    Verb.SUBSCRIBE: _may_subscribe,
    Verb.DESCRIBE: _may_describe,
    Verb.MANAGE: _may_manage,
    Verb.GROUP: _may_group,
    Verb.QUEUE: _may_queue,
    Verb.PRODUCER: _may_name,
    Verb.SCHEDULE: _may_name,
    Verb.PRESENCE: _may_subscribe,
    Verb.USER: _may_act_on_user,
    Verb.ADMIN: _may_operate,
}


def forbidden(who: Identity, verb: Verb, name: str) -> ForbiddenError:
    """The error that an authority raises."""
    if who.account is not None:
        asker = f"The {who.account.kind} {who.account.name!r}"
    else:
        asker = f"The user {who.user!r}" if who.user else "A client without a user"
    about = f" {name!r}" if name else " this broker"
    pattern = " A pattern is allowed only if every topic that it can match is."
    return ForbiddenError(
        f"{asker} may not {_DOING[verb]}{about}.{pattern if is_pattern(name) else ''} Ask the "
        f"operator for the permission {verb.value!r}, or use another user.",
        verb=verb.value,
        name=name,
    )


_DOING = {
    Verb.PUBLISH: "publish to",
    Verb.SUBSCRIBE: "read",
    Verb.DESCRIBE: "describe",
    Verb.MANAGE: "create, change or delete",
    Verb.GROUP: "use the group",
    Verb.QUEUE: "work on the queue",
    Verb.PRODUCER: "publish under the name",
    Verb.SCHEDULE: "change the schedule",
    Verb.PRESENCE: "see who is in",
    Verb.USER: "act on the user",
    Verb.ADMIN: "operate",
}
