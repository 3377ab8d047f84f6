"""Quotas: how many topics, and how many stored bytes, an owner or a prefix may have. Pure.

Each topic has a `Share`: its bytes as far as they are counted, and the quotas that count them.
Bytes are added as they are stored. What retention has deleted is taken off when the broker looks
through its topics the next time, or at once after a truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fanlog.config_limits import LimitOptions
from fanlog.errors import ConfigError, QuotaExceededError
from fanlog.identity import Allowance

AllowanceOf = Callable[[str], Allowance | None]


class Quota:
    """The usage and the limits of some topics together. A maximum of 0 is none."""

    __slots__ = ("stored_bytes", "stored_bytes_max", "subject", "topics", "topics_max")

    def __init__(self, subject: str, topics_max: int = 0, stored_bytes_max: int = 0) -> None:
        """`subject` begins the sentence of a refusal."""
        self.subject = subject
        self.topics = 0
        self.stored_bytes = 0
        self.topics_max = topics_max
        self.stored_bytes_max = stored_bytes_max

    def check_one_more(self) -> None:
        """Raises if there may be no further topic."""
        if self.topics_max and self.topics >= self.topics_max:
            raise QuotaExceededError(
                f"{self.subject} has {self.topics} topics, and its quota is {self.topics_max}. "
                "Delete one that is not needed any more, or ask the operator for a higher quota."
            )

    def maybe_fault(self) -> QuotaExceededError | None:
        """The error against storing more, or None."""
        if not self.stored_bytes_max or self.stored_bytes < self.stored_bytes_max:
            return None
        return QuotaExceededError(
            f"{self.subject} stores {self.stored_bytes} bytes, and its quota is "
            f"{self.stored_bytes_max}. Nothing was stored. Truncate or delete topics, shorten "
            "their retention, or ask the operator for a higher quota."
        )


class Share:
    """The part of one topic in its quotas."""

    __slots__ = ("_bytes", "_quotas")

    def __init__(self, quotas: tuple[Quota, ...], stored_bytes: int) -> None:
        self._quotas = quotas
        self._bytes = 0
        for quota in quotas:
            quota.topics += 1
        self.recount(stored_bytes)

    def grew(self, size: int) -> None:
        self._bytes += size
        for quota in self._quotas:
            quota.stored_bytes += size

    def recount(self, stored_bytes: int) -> None:
        self.grew(stored_bytes - self._bytes)

    def end(self) -> None:
        """The topic is deleted, or has another owner."""
        self.recount(0)
        for quota in self._quotas:
            quota.topics -= 1
        self._quotas = ()

    def maybe_fault(self) -> QuotaExceededError | None:
        for quota in self._quotas:
            fault = quota.maybe_fault()
            if fault is not None:
                return fault
        return None


class QuotaTable:
    """The quotas of all owners and prefixes. `allowance_of` returns an account's limits by name.
    `bounded` is set if one of them has a maximum: every owner has a quota, so that the usage is
    known when a maximum is set."""

    def __init__(self, options: LimitOptions) -> None:
        self._options = options
        self.allowance_of: AllowanceOf = _nobody
        self._prefixes = list(_prefixes(options.prefixes))
        self._owners: dict[str, Quota] = {}
        self.bounded = bool(self._prefixes)

    def check_new(self, name: str, owner: str) -> None:
        """Raises if there may be no topic of this name and owner."""
        for quota in self.of(name, owner):
            quota.check_one_more()
            fault = quota.maybe_fault()
            if fault is not None:
                raise fault

    def of(self, name: str, owner: str) -> tuple[Quota, ...]:
        """The quotas that a topic counts for."""
        found = [quota for prefix, quota in self._prefixes if name.startswith(prefix)]
        if owner:
            quota = self._owners.get(owner)
            if quota is None:
                quota = self._owners[owner] = Quota(f"The user {owner!r}")
                self._renew(owner, quota)
            found.append(quota)
        return tuple(found)

    def renew(self) -> None:
        """Accounts or settings have changed."""
        self.bounded = bool(self._prefixes)
        for owner, quota in list(self._owners.items()):
            if not quota.topics:
                del self._owners[owner]
            else:
                self._renew(owner, quota)

    def _renew(self, owner: str, quota: Quota) -> None:
        allowance = self.allowance_of(owner) or Allowance()
        quota.topics_max = allowance.topics or self._options.topics_per_user
        quota.stored_bytes_max = allowance.stored_bytes or self._options.stored_bytes_per_user
        self.bounded |= bool(quota.topics_max or quota.stored_bytes_max)


def _nobody(name: str) -> None:
    return None


def _prefixes(text: str) -> Iterator[tuple[str, Quota]]:
    """`team-a.:topics=100:stored_bytes=1000, logs.:topics=3`."""
    for part in filter(None, map(str.strip, text.split(","))):
        prefix, *words = part.split(":")
        given: dict[str, int] = {}
        for word in words:
            name, _, value = word.partition("=")
            if name.strip() not in ("topics", "stored_bytes") or not value.strip().isdecimal():
                raise _wrong(part)
            given[name.strip()] = int(value)
        if not prefix or not given:
            raise _wrong(part)
        subject = f"The prefix {prefix!r}"
        yield prefix, Quota(subject, given.get("topics", 0), given.get("stored_bytes", 0))


def _wrong(part: str) -> ConfigError:
    return ConfigError(
        f"limits.prefixes: {part!r} is no quota of a prefix: write it as "
        "team-a.:topics=100:stored_bytes=1000000000, and separate several with commas."
    )
