"""Turns typed payloads and results into what JSON can hold, and back, and checks both ways."""

from __future__ import annotations

from typing import Any, Final, Generic, NoReturn, TypeVar

import msgspec

from pgq._errors import InvalidPayload

T = TypeVar("T")

_UNTYPED: Final = (Any, object, NoReturn)


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
        if hasattr(kind, "__pydantic_validator__"):
            from pydantic import TypeAdapter  # noqa: PLC0415 only where it is used

            self._adapter = TypeAdapter(kind)
        elif self.is_typed and isinstance(
            msgspec.inspect.type_info(kind), msgspec.inspect.CustomType
        ):
            raise TypeError(f"{kind!r} is no dataclass, TypedDict, model or type of JSON")

    def encode(self, value: T) -> Any:
        """Return what JSON can hold; raises `InvalidPayload` if `value` is not of the type."""
        if not self.is_typed:
            return value
        try:
            if self._adapter is None:
                plain = msgspec.to_builtins(value)
            else:
                plain = self._adapter.dump_python(value, mode="json", warnings="error")
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
            raise InvalidPayload(str(exc)) from exc
        self.decode(plain)
        return plain

    def decode(self, plain: Any) -> T:
        """Return a value of the type; raises `InvalidPayload` if `plain` does not make one."""
        if not self.is_typed:
            value: T = plain
            return value
        try:
            if self._adapter is None:
                made: T = msgspec.convert(plain, self._kind)
            else:
                made = self._adapter.validate_python(plain)
        except ValueError as exc:
            raise InvalidPayload(str(exc)) from exc
        return made
