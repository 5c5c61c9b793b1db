"""Turns typed payloads and results into what JSON can hold, and back, and checks both ways."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar, cast, get_args

import msgspec
from msgspec.inspect import CustomType, Field, Type, type_info

from pgq._errors import InvalidPayload
from pgq._models import readable

T = TypeVar("T")

_UNTYPED: Final = (Any, object, NoReturn, getattr(typing, "Never", NoReturn))


class Codec(Generic[T]):
    """Encodes and validates values of one type.

    Args:
        kind: a dataclass, TypedDict, msgspec.Struct, pydantic model, or whatever else msgspec
            knows; `Any` and `object` take everything as it is.

    Raises:
        TypeError: nothing is known about the type.
    """

    def __init__(self, kind: Any) -> None:
        self.is_typed: bool = kind not in _UNTYPED
        self._kind = kind
        self._adapter: Any = None
        if not self.is_typed:
            return
        classes = {} if _has_model(kind) else _classes(kind)
        if _has_model(kind) or any(map(_has_model, classes)):
            from pydantic import TypeAdapter  # noqa: PLC0415 only where it is used

            self._adapter = TypeAdapter(kind)
            return
        for cls, is_known in classes.items():
            if not is_known:
                raise TypeError(f"{cls!r} is no dataclass, TypedDict, model or type of JSON")

    def encode(self, value: T) -> Any:
        """Return what JSON can hold.

        Raises:
            InvalidPayload: `value` is not of the type, or pydantic would make another one of it.
        """
        if not self.is_typed:
            return value
        try:
            if self._adapter is None:
                plain = msgspec.to_builtins(value, str_keys=True)
            else:
                plain = self._adapter.dump_python(
                    value, mode="json", by_alias=True, round_trip=True, warnings="error"
                )
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
            raise InvalidPayload(str(exc)) from exc
        made = self.decode(plain)
        is_other = not isinstance(self._kind, TypeVar) and not _alike(made, value)
        if self._adapter is None:
            if is_other:
                raise InvalidPayload(f"it would come back as {made!r}")
        elif is_other or self._look(made) != self._look(value):
            raise InvalidPayload(
                f"it would come back as {made!r}: what pydantic masks, as SecretStr, needs a"
                " serializer of its own, and a union of models that look alike a discriminator"
            )
        return plain

    def _look(self, value: T) -> tuple[type[T], Any]:
        return type(value), self._adapter.dump_python(value, round_trip=True, warnings=False)

    def decode(self, plain: Any) -> T:
        """Return a value of the type; raises `InvalidPayload` if `plain` does not make one."""
        value: T = readable("value", plain)
        if not self.is_typed:
            return value
        try:
            if self._adapter is None:
                made: T = msgspec.convert(plain, self._kind, str_keys=True)
            else:  # as JSON, of which a strict model, too, takes a text for a time
                made = self._adapter.validate_json(msgspec.json.encode(plain))
        except ValueError as exc:
            raise InvalidPayload(str(exc)) from exc
        return made


def _fields(value: Any) -> Iterable[str]:
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return getattr(cast("object", type(value)), "__pydantic_fields__", ())


def _parts(value: Any) -> Iterable[Any]:
    parts: Any = ()
    if issubclass(type(value), Mapping):
        parts = value.values()
    elif issubclass(type(value), (list, tuple)):
        parts = value
    return cast("Iterable[Any]", parts)


def _alike(made: Any, value: Any) -> bool:
    """Tell whether what has fields is of the same class: what a subclass has would be lost."""
    if (names := _fields(value)) and _fields(made):
        return type(made) is type(value) and all(
            _alike(getattr(made, name, None), getattr(value, name, None)) for name in names
        )
    return all(map(_alike, _parts(made), _parts(value)))


def _has_model(kind: Any) -> bool:
    """Tell whether a type is a pydantic model, or made of one, as a list of them is."""
    return hasattr(kind, "__pydantic_validator__") or any(map(_has_model, get_args(kind)))


def _classes(kind: Any) -> dict[type, bool]:
    """Return the classes in a type, and its fields' types, and whether msgspec knows them."""
    found: dict[type, bool] = {}
    seen: set[int] = set()

    def look(part: Any) -> None:
        if isinstance(part, tuple):
            for each in cast("Iterable[Any]", part):
                look(each)
        elif isinstance(part, (Type, Field)) and id(part) not in seen:
            seen.add(id(part))
            if isinstance(cls := getattr(part, "cls", None), type):
                found[cls] = cls is object or not isinstance(part, CustomType)
            for name in part.__struct_fields__:
                look(getattr(part, name))

    look(type_info(kind))
    return found
