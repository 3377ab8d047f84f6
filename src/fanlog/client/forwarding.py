"""Classes that stand in front of others: a typed subscription in front of a plain one, the blocking
client in front of the asyncio one. A front takes over methods and properties, one line each:

    class TypedGroupMember(Front[GroupMember]):
        seek = passed(GroupMember.seek)
        group = shown(GroupMember, lambda member: member.group)

Law: what is taken over keeps its name, its parameters, its types and its docstring, for type
checkers, for `help()` and for the reference. `tests/client/test_forwarding.py` holds them to it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
B = TypeVar("B")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Front(Generic[B]):
    """Stands in front of `_behind`."""

    __slots__ = ("_behind",)

    def __init__(self, behind: B) -> None:
        self._behind = behind

    def __init_subclass__(cls) -> None:
        """A method that was taken over says where it is now."""
        super().__init_subclass__()
        for name, member in vars(cls).items():
            if isinstance(member, FunctionType) and hasattr(member, "__wrapped__"):
                member.__module__, member.__qualname__ = (
                    cls.__module__,
                    f"{cls.__qualname__}.{name}",
                )


def passed(method: Callable[Concatenate[B, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of the object behind, as it is."""
    name = method.__name__

    def called(front: Any, *given: P.args, **named: P.kwargs) -> R:
        return getattr(front._behind, name)(*given, **named)

    return standing_for(method, called)


def standing_for(
    method: Callable[..., Any],
    called: Callable[Concatenate[Any, P], R],
    *,
    returns: str = "",
) -> Callable[Concatenate[Any, P], R]:
    """The function `called` with the name, the signature and the docstring of a method."""
    functools.update_wrapper(called, method)
    if returns:
        signature = inspect.signature(method).replace(return_annotation=returns)
        called.__annotations__ = {**called.__annotations__, "return": returns}
        vars(called)["__signature__"] = signature
    return called


class Shown(Protocol[R_co]):
    """A property, as type checkers see it."""

    def __get__(self, front: object, owner: object = None, /) -> R_co: ...


class _ShownProperty(property):
    """Has the docstring of the property behind, whose name it learns from its class."""

    kind: type

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(getattr(self.kind, name, None), "__doc__", None)


def shown(kind: type[B], get: Callable[[B], R]) -> Shown[R]:
    """A property of the object behind, which is of a `kind`."""

    def read(front: Any) -> R:
        return get(front._behind)

    found = _ShownProperty(read)
    found.kind = kind
    return cast("Shown[R]", found)
