"""Who in a group reads which partition: a pure function of who is there, what each wants, and who
has what now.

Balanced: of two members that could read the same partition, neither has two more than the other.
Sticky: a partition changes hands only if its owner left, or if balance asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

Place = tuple[str, int]


def assign(
    wants: Mapping[str, Set[str]],
    partitions: Sequence[Place],
    current: Mapping[Place, str],
) -> dict[Place, str]:
    """The owner of each partition. `wants` has the topics that each member follows.

    >>> assign({"a": {"t"}, "b": {"t"}}, [("t", 0), ("t", 1)], {("t", 0): "b", ("t", 1): "b"})
    {('t', 0): 'a', ('t', 1): 'b'}
    """
    readers = _readers(wants, partitions)
    owned: dict[str, list[Place]] = {member: [] for member in sorted(wants)}
    owner: dict[Place, str] = {}
    free: list[Place] = []
    for place in sorted(partitions):
        holder = current.get(place)
        if holder is not None and place[0] in wants.get(holder, ()):
            owned[holder].append(place)
            owner[place] = holder
        elif readers[place[0]]:
            free.append(place)
    for place in free:
        least = _emptiest(readers[place[0]], owned)
        owned[least].append(place)
        owner[place] = least
    while (move := _next_move(owned, readers)) is not None:
        place, giver, taker = move
        owned[giver].remove(place)
        owned[taker].append(place)
        owner[place] = taker
    return dict(sorted(owner.items()))


def _readers(
    wants: Mapping[str, Set[str]], partitions: Sequence[Place]
) -> dict[str, tuple[str, ...]]:
    """The members that follow each topic."""
    topics = {topic for topic, _ in partitions}
    return {
        topic: tuple(sorted(m for m, wanted in wants.items() if topic in wanted))
        for topic in topics
    }


def _emptiest(members: Sequence[str], owned: Mapping[str, list[Place]]) -> str:
    return min(members, key=lambda member: (len(owned[member]), member))


def _next_move(
    owned: Mapping[str, list[Place]], readers: Mapping[str, tuple[str, ...]]
) -> tuple[Place, str, str] | None:
    """One partition that a member has too many of, and who should get it: the fullest gives,
    the emptiest that can read it takes."""
    sizes = [len(places) for places in owned.values()]
    if not sizes or max(sizes) - min(sizes) <= 1:
        return None
    takers: dict[str, str] = {}
    for giver in sorted(owned, key=lambda member: (-len(owned[member]), member)):
        for place in owned[giver]:
            topic = place[0]
            if topic not in takers:
                takers[topic] = _emptiest(readers[topic], owned)
            if len(owned[giver]) - len(owned[takers[topic]]) > 1:
                return place, giver, takers[topic]
    return None
