"""What payloads and results can be: what arrives equals what was sent, or it is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial, wraps
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import msgspec
import pgq
import pydantic
import pytest
from pgq._codec import Codec
from pgq._rows import read_json

pytestmark = pytest.mark.once

T = TypeVar("T")
ID = UUID(int=7)
AT = datetime(2026, 11, 22, 5, tzinfo=UTC)


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


class Plate(msgspec.Struct):
    radius: float


class Disc(Plate):
    hole: float


class Ring(msgspec.Struct):
    inner: Plate


class Named(pydantic.BaseModel):
    name: str


class Titled(Named):
    title: str


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    id: UUID
    at: datetime
    pair: tuple[int, int]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return sum(self.pair)


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr
    _tries: list[int] = pydantic.PrivateAttr(default_factory=list[int])


class OpenLogin(Login):
    @pydantic.field_serializer("password", when_used="json")
    def shown(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


class Page(pydantic.BaseModel, Generic[T]):
    rows: list[T]


@dataclass
class Envelope:
    letters: list[Model]


MODEL = Model.model_validate({"from": "ada"})


VALUES: list[tuple[Any, Any]] = [
    (Person, Person(Address("here"), AT, {1: Decimal("1.10")}, None, b"\xff")),
    (Person, Person(Address("here"), AT, {}, Person(Address("there"), AT))),
    (Box[int], Box(1)),
    (Box[Address], Box(Address("here"))),
    (list[Address], [Address("here")]),
    (Address | None, None),
    (float, 1e22),  # from the server, as an integer
    (float, -1e300),
    (list[float], [1.0, 2.5e-300]),
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
]


def same(arrived: Any, value: Any) -> None:
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_what_arrives_as_json_is_what_was_sent(kind: Any, value: Any) -> None:
    codec = Codec[Any](kind)
    same(codec.decode(read_json(json.dumps(codec.encode(value)))), value)


async def test_what_arrives_from_the_server_is_what_was_sent(queue: pgq.Queue) -> None:
    codecs = [Codec[Any](kind) for kind, _ in VALUES]
    await queue.enqueue_many(
        [codec.encode(value) for codec, (_, value) in zip(codecs, VALUES, strict=True)]
    )
    jobs = await queue.dequeue(len(VALUES))
    for codec, job, (_, value) in zip(codecs, jobs, VALUES, strict=True):
        same(codec.decode(job.payload), value)


class Cat(pydantic.BaseModel):
    name: str


class Dog(pydantic.BaseModel):
    name: str


SECRET = pydantic.SecretStr("swordfish")


def test_a_secret_is_refused_that_json_would_mask() -> None:
    with pytest.raises(
        pgq.InvalidPayload, match=r"come back as Login.*\*\*\*.*serializer"
    ) as raised:
        Codec[Any](Login).encode(Login(password=SECRET))
    assert "swordfish" not in str(raised.value)
    plain = Codec[Any](OpenLogin).encode(OpenLogin(password=SECRET))
    assert plain == {"password": "swordfish"}
    assert Codec[Any](OpenLogin).decode(plain).password == SECRET


def test_what_has_more_fields_than_its_type_is_refused() -> None:
    @dataclass
    class House(Address):
        floors: int

    assert Codec[Any](Address).encode(Address("here")) == {"street": "here"}

    house = House("here", 2)
    for kind, value in (
        (Address, house),
        (list[Address], [house]),
        (dict[str, Address], {"": house}),
        (tuple[Address, int], (house, 1)),
        (Person, Person(house, AT)),
        (Ring, Ring(Disc(1, 2))),
        (Page[Named], Page[Named](rows=[Titled(name="Ada", title="Lady")])),
        (list[Named], [Titled(name="Ada", title="Lady")]),
    ):
        with pytest.raises(pgq.InvalidPayload, match="come back as"):
            Codec[Any](kind).encode(value)


def test_a_model_is_refused_that_would_become_another_one() -> None:
    codec = Codec[Any](Cat | Dog)
    assert codec.decode(codec.encode(Cat(name="Tom"))) == Cat(name="Tom")
    with pytest.raises(pgq.InvalidPayload, match=r"come back as Cat.*discriminator"):
        codec.encode(Dog(name="Rex"))
    with pytest.raises(pgq.InvalidPayload, match="come back as Login"):
        Codec[Any](Login).encode(OpenLogin(password=pydantic.SecretStr("")))


@dataclass
class Waiting:
    events: list[asyncio.Event]


@pytest.mark.parametrize("kind", [asyncio.Event, list[asyncio.Event], Waiting])
def test_what_no_json_can_hold_is_told_at_once(kind: Any) -> None:
    with pytest.raises(TypeError, match=r"asyncio\.locks\.Event'> is no dataclass"):
        Codec[Any](kind)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Handlers:
    async def __call__(self, job: pgq.Job[Address]) -> int:
        return 1

    async def method(self, job: pgq.Job[Address]) -> int:
        return 1

    @staticmethod
    def static(job: pgq.Job[Address]) -> int:
        return 1


async def with_greeting(greeting: str, job: pgq.Job[Address]) -> int:
    return len(greeting)


def later_class(job: pgq.Job["Address"]) -> "int | pgq.Retry":  # noqa: UP037
    return 1


@pytest.mark.parametrize(
    ("function", "name", "run_in"),
    [
        (Handlers(), "Handlers", "loop"),
        (Handlers().method, "method", "loop"),
        (Handlers.static, "static", "thread"),
        (partial(with_greeting, "hello"), "with_greeting", "loop"),
        (decorated(Handlers.static), "static", "thread"),
        (decorated(partial(with_greeting, "hello")), "with_greeting", "thread"),
        (later_class, "later_class", "thread"),
    ],
    ids=str,
)
def test_all_that_can_be_called_can_be_a_task(
    function: Callable[..., Any], name: str, run_in: str
) -> None:
    task = pgq.Task[Any, Any](function, "default")
    assert (task.name, task.run_in) == (name, run_in)
    assert task.payloads.decode({"street": "here"}) == Address("here")
    with pytest.raises(pgq.InvalidPayload):
        task.results.encode("none")


async def yields(_: pgq.Job) -> Any:
    yield


def takes_nothing() -> None: ...


def refuses(_: pgq.Job) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (takes_nothing, {}, "cannot be called with a job"),
        (Handlers.method, {}, "cannot be called with a job"),
        (refuses, {"transaction": True}, "must be a coroutine function"),
        (Handlers().method, {"transaction": True}, "cannot be called with a job and a connection"),
        (yields, {}, "yields: a handler returns"),
        (partial(refuses), {"process": True}, "at the top of a module"),
    ],
)
def test_what_cannot_handle_a_job_is_told_at_once(
    function: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pgq.Task[Any, Any](function, "default", **options)
