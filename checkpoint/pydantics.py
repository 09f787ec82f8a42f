"""How pydantic models are taken apart and rebuilt: as they were, neither validated nor coerced.

The data is a dict of the fields, of what ``extra="allow"`` let in, and of the private attributes. What was not set, but
stands at its default, is named in a list under the empty name, so that `model_fields_set` and ``exclude_unset=True`` come
back too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

_UNSET = ""
_bases: Any = type.__dict__["__mro__"]


def is_model(cls: type) -> bool:
    """Return whether a class is a model of pydantic 2, which is not imported for it."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    # The way to look at a class that asks neither its metaclass nor pydantic's, which may do anything.
    return base is not None and hasattr(base, "model_construct") and base in _bases.__get__(cls)


def model_adapter(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how models of a class become data, and data models."""
    return (lambda value: _to_data(cls, value)), (lambda data: _from_data(cls, data))


def _to_data(cls: Any, value: Any) -> dict[str, Any]:
    fields, privates, held = cls.model_fields, cls.__private_attributes__, value.__dict__
    private = getattr(value, "__pydantic_private__", None) or {}
    extra = getattr(value, "__pydantic_extra__", None) or {}
    if absent := [name for name in fields if name not in held]:
        raise ValueError(f"it is not complete: it has no {absent[0]!r}")
    for name in held:
        if name not in fields and not isinstance(inspect.getattr_static(cls, name, None), cached_property):
            raise ValueError(f"its attribute {name!r} is not a field and would be lost; make it one")
    for name in extra:
        if name in fields or name in privates or name == _UNSET:
            raise ValueError(f"its extra {name!r} has the name of another attribute; rename it")
    was_set = value.__pydantic_fields_set__
    data = {name: held[name] for name in fields}
    data.update(extra)
    unset = [name for name in data if name not in was_set]
    unset += [name for name in privates if name not in private]
    data.update((name, private[name]) for name in privates if name in private)
    if unset:
        data[_UNSET] = unset
    return data


def _from_data(cls: Any, data: Any) -> Any:
    if type(data) is not dict:
        raise ValueError(f"the data of a {cls.__qualname__} is a dict of its fields, and this is {type(data).__name__}")
    fields, privates = cls.model_fields, cls.__private_attributes__
    allows_extra = cls.model_config.get("extra") == "allow"
    unset = set(data.get(_UNSET, ()))
    held: dict[str, Any] = {}
    for name, field in fields.items():
        held[name] = data[name] if name in data else _default(cls, name, field, held)
    private = {}
    for name, attribute in privates.items():
        if name in data:
            private[name] = data[name]
        elif name not in unset and (default := attribute.get_default()) is not _undefined():
            private[name] = default
    extra = {name: data[name] for name in data if name not in fields and name not in privates and name != _UNSET}
    if extra and not allows_extra:
        raise ValueError(f"{cls.__qualname__} has no field {min(extra)!r}; raise its version and give an upcast")
    value = cls.__new__(cls)
    object.__setattr__(value, "__dict__", held)
    object.__setattr__(value, "__pydantic_fields_set__", {*fields, *extra}.intersection(data) - unset)
    if not cls.__pydantic_root_model__:  # which has neither
        object.__setattr__(value, "__pydantic_extra__", extra if allows_extra else None)
        object.__setattr__(value, "__pydantic_private__", private if privates else None)
    return value


def _default(cls: Any, name: str, field: Any, held: dict[str, Any]) -> Any:
    if field.is_required():
        raise ValueError(f"field {name!r} of {cls.__qualname__} is missing and has no default; give an upcast")
    if getattr(field, "default_factory_takes_validated_data", False):
        return field.default_factory(held)
    return field.get_default(call_default_factory=True)


def _undefined() -> Any:
    return sys.modules["pydantic_core"].PydanticUndefined
