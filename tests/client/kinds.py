"""Types that messages are made of in tests: one order, in every way to write it down."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import attrs
import msgspec
import pydantic
import pydantic.dataclasses

WHEN = dt.datetime(2026, 11, 16, 9, 30, tzinfo=dt.UTC)


@dataclass
class DataclassOrder:
    tea: int
    when: dt.datetime
    note: str | None = None


class StructOrder(msgspec.Struct):
    tea: int
    when: dt.datetime
    note: str | None = None


@attrs.define
class AttrsOrder:
    tea: int
    when: dt.datetime
    note: str | None = None


class PydanticOrder(pydantic.BaseModel):
    tea: int = pydantic.Field(alias="teaCups")
    when: dt.datetime
    note: str | None = None


@pydantic.dataclasses.dataclass
class PydanticDataclassOrder:
    tea: int
    when: dt.datetime
    note: str | None = None


class Basket(msgspec.Struct):
    """One kind within another."""

    orders: list[PydanticOrder]
    first: DataclassOrder


class Opaque:
    """Nothing that anybody could encode."""


ORDERS: dict[str, Any] = {
    "dataclass": DataclassOrder(2, WHEN, "hot"),
    "struct": StructOrder(2, WHEN, "hot"),
    "attrs": AttrsOrder(2, WHEN, "hot"),
    "pydantic": PydanticOrder(teaCups=2, when=WHEN, note="hot"),
    "pydantic-dataclass": PydanticDataclassOrder(2, WHEN, "hot"),
    "nested": Basket([PydanticOrder(teaCups=1, when=WHEN)], DataclassOrder(2, WHEN)),
}
