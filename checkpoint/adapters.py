"""How a registered class is taken apart into data and rebuilt, where the class itself says what it is made of.

No library is imported here: a class that comes from one has loaded it. Code of the class's own does not run when a value
is rebuilt, except a Struct's `__post_init__`, which `Registration.checked` is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum, Flag
from typing import Any

import msgspec

from checkpoint.errors import RegistrationError
from checkpoint.pydantics import is_model, model_adapter

Adapter = tuple[Callable[[Any], Any], Callable[[Any], Any]]

_NOTHING: Any = object()
_ATTRS_HASH = "_attrs_cached_hash"  # where attrs keeps the hash of a class with cache_hash=True


def adapter(tag: str, cls: type) -> Adapter:
    """Return how values of a class become data, and data values.

    Args:
        tag: What an error calls the registration.
        cls: An Enum, dataclass, attrs class, pydantic model, named tuple or msgspec Struct.

    Raises:
        RegistrationError: The class is none of these.
    """
    if issubclass(cls, Flag):
        return (lambda member: member.value), cls
    if issubclass(cls, Enum):
        return (lambda member: member.name), (lambda name: cls[name])
    if is_dataclass(cls):
        return _fields_adapter(cls, {field.name: _dataclass_default(field) for field in fields(cls)})
    if hasattr(cls, "__attrs_attrs__"):
        return _fields_adapter(cls, {field.name: _attrs_default(field) for field in cls.__attrs_attrs__})
    if is_model(cls):
        return model_adapter(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_adapter(cls)
    if issubclass(cls, msgspec.Struct):
        return _struct_adapter(cls)
    raise RegistrationError(
        tag,
        f"{cls.__qualname__} is no Enum, dataclass, attrs class, pydantic model, named tuple or msgspec Struct; give "
        "to_data= and from_data=",
    )


def _fields_adapter(cls: type, known: Mapping[str, Callable[[Any], Any]]) -> Adapter:
    """Adapt a dataclass or attrs class.

    Args:
        cls: The class.
        known: Field → what makes its default for a value that is being rebuilt, or returns `_NOTHING`.
    """
    hash_names = getattr(getattr(cls.__hash__, "__code__", None), "co_names", ())
    keeps_hash = hasattr(cls, "__attrs_attrs__") and _ATTRS_HASH in hash_names
    unbuildable = _unbuildable(cls)

    def to_data(value: Any) -> dict[str, Any]:
        if unbuildable is not None:
            raise ValueError(f"its fields are not all there is of it ({unbuildable}); register it with to_data=")
        if extra := [name for name in getattr(value, "__dict__", ()) if name not in known and name != _ATTRS_HASH]:
            raise ValueError(f"its attribute {extra[0]!r} is not a field and would be lost; make it one")
        try:
            return {name: getattr(value, name) for name in known}
        except AttributeError as error:
            raise ValueError(f"it is not complete: {error}") from error

    def from_data(data: dict[str, Any]) -> Any:
        refuse_unknown(cls, data, known)
        # Neither __init__ nor __post_init__ runs: the fields were computed once, and come back as they were.
        value: Any = object.__new__(cls)
        if keeps_hash:
            object.__setattr__(value, _ATTRS_HASH, None)
        for name, default in known.items():
            member = data[name] if name in data else default(value)
            if member is _NOTHING:
                raise missing(cls, name)
            object.__setattr__(value, name, member)
        return value

    return to_data, from_data


def _unbuildable(cls: type) -> str | None:
    """Return why no bare object of the class can be made, as of one that is a dict or an exception too, or None."""
    try:
        object.__new__(cls)
    except TypeError as error:
        return str(error)
    return None


def _dataclass_default(field: Field[Any]) -> Callable[[Any], Any]:
    factory = field.default_factory
    if factory is not MISSING:
        return lambda _value: factory()
    default = _NOTHING if field.default is MISSING else field.default
    return lambda _value: default


def _attrs_default(field: Any) -> Callable[[Any], Any]:
    attrs: Any = sys.modules["attr"]  # the class is made by it
    default = field.default
    if isinstance(default, attrs.Factory):
        factory: Callable[..., Any] = default.factory
        return factory if default.takes_self else lambda _value: factory()
    return lambda _value: _NOTHING if default is attrs.NOTHING else default


def _named_tuple_adapter(cls: Any) -> Adapter:
    names, defaults = cls._fields, getattr(cls, "_field_defaults", {})

    def to_data(value: Any) -> dict[str, Any]:
        if extra := list(getattr(value, "__dict__", ())):
            raise ValueError(f"its attribute {extra[0]!r} is not a field and would be lost; make it one")
        return dict(zip(names, value, strict=True))

    def from_data(data: dict[str, Any]) -> Any:
        refuse_unknown(cls, data, names)
        if absent := [name for name in names if name not in data and name not in defaults]:
            raise missing(cls, absent[0])
        return tuple.__new__(cls, [data[name] if name in data else defaults[name] for name in names])

    return to_data, from_data


def _struct_adapter(cls: Any) -> Adapter:
    names = cls.__struct_fields__

    def to_data(value: Any) -> dict[str, Any]:
        if extra := list(getattr(value, "__dict__", ())):
            raise ValueError(f"its attribute {extra[0]!r} is not a field and would be lost; make it one")
        return {name: getattr(value, name) for name in names}

    return to_data, (lambda data: cls(**data))


def refuse_unknown(cls: type, data: Any, known: Any) -> None:
    """Raise ValueError for data that is no dict, or has a field that the class lacks."""
    if type(data) is not dict:
        raise ValueError(f"the data of a {cls.__qualname__} is a dict of its fields, and this is {type(data).__name__}")
    if extra := [name for name in data if name not in known]:
        raise ValueError(f"{cls.__qualname__} has no field {extra[0]!r}; raise its version and give an upcast")


def missing(cls: type, name: str) -> ValueError:
    """Return the error for a field that neither the data nor the class has a value for."""
    return ValueError(f"field {name!r} of {cls.__qualname__} is missing and has no default; give an upcast")
