"""What payloads and results can be: what arrives equals what was sent, or it is refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from pgq._codec import Codec
from typing_extensions import NotRequired

T = TypeVar("T")
ID = UUID(int=7)
AT = datetime(2026, 11, 22, 5, tzinfo=timezone.utc)


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


@dataclass
class Address:
    street: str


@dataclass
class Person:
    address: Address
    born: datetime
    scores: dict[int, Decimal] = field(default_factory=dict[int, Decimal])
    partner: Optional[Person] = None  # noqa: UP045 both ways of writing it
    photo: bytes = b""


@dataclass
class Box(Generic[T]):
    content: T


class Options(TypedDict):
    color: Color
    size: NotRequired[Size]


class Point(NamedTuple):
    x: int
    y: int = 0


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Model(pydantic.BaseModel):
    sender: str = pydantic.Field(alias="from")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    id: UUID
    at: datetime
    pair: tuple[int, int]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return sum(self.pair)


class Page(pydantic.BaseModel, Generic[T]):
    rows: list[T]


@dataclass
class Envelope:
    letters: list[Model]


MODEL = Model.model_validate({"from": "ada"})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Person, Person(Address("here"), AT, {1: Decimal("1.10")}, None, b"\xff")),
        (Person, Person(Address("here"), AT, {}, Person(Address("there"), AT))),
        (Box[int], Box(1)),
        (Box[Address], Box(Address("here"))),
        (list[Address], [Address("here")]),
        (Address | None, None),
        (Address | int | None, 3),
        (Circle | Square, Square(2.5)),
        (dict[UUID, Size], {ID: Size.SMALL}),
        (dict[Size, int], {Size.SMALL: 1}),
        (Options, {"color": Color.RED}),
        (Options, {"color": Color.RED, "size": Size.SMALL}),
        (Point, Point(1)),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Literal["a", 1], 1),
        (timedelta, timedelta(days=1, microseconds=1)),
        (None, None),
        (int, 2**70),
        (Model, MODEL),
        (Strict, Strict(id=ID, at=AT, pair=(1, 2))),
        (Page[int], Page[int](rows=[1])),
        (Model | None, MODEL),
        (list[Model], [MODEL]),
        (Model | Strict, Strict(id=ID, at=AT, pair=(1, 2))),
        (Envelope, Envelope([MODEL])),
    ],
    ids=str,
)
def test_what_arrives_is_what_was_sent(kind: Any, value: Any) -> None:
    codec = Codec[Any](kind)
    arrived = codec.decode(json.loads(json.dumps(codec.encode(value))))
    assert arrived == value
    assert type(arrived) is type(value)


@dataclass
class Waiting:
    events: list[asyncio.Event]


@pytest.mark.parametrize("kind", [asyncio.Event, list[asyncio.Event], Waiting])
def test_what_no_json_can_hold_is_told_at_once(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"asyncio\.locks\.Event'> is no dataclass"):
        Codec[Any](kind)
