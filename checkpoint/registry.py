"""Which user types may be stored, under which tag, and how older versions of them are read.

The tag is what the bytes hold. It is looked up here and nowhere else: nothing that is stored can name code to import.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from checkpoint.adapters import adapter
from checkpoint.errors import RegistrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TAG = re.compile(r"[A-Za-z_][\w.:-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Registration:
    """How one type is stored.

    Args:
        tag: What the bytes hold.
        cls: The type.
        version: The schema version that is written.
        upcast: Version → function that turns data of that version into data of the next.
        to_data: Value → data that the codec knows.
        from_data: Data of `version` → value.
        checked: Whether a save must rebuild the value and compare, because code of the user's takes part in it.
    """

    tag: str
    cls: type
    version: int
    upcast: Mapping[int, Callable[[Any], Any]]
    to_data: Callable[[Any], Any]
    from_data: Callable[[Any], Any]
    checked: bool

    def current(self, data: Any, version: int) -> Any:
        """Return `data` of an older `version` as data of this one."""
        for step in range(version, self.version):
            if step not in self.upcast:
                raise LookupError(f"no upcast from version {step} to {step + 1} is registered")
            data = self.upcast[step](data)
        return data


class Registry:
    """The known user types, by class and by tag."""

    def __init__(self) -> None:
        self._by_class: dict[type, Registration] = {}
        self._by_tag: dict[str, Registration] = {}

    def register(
        self,
        tag: str,
        cls: type,
        *,
        version: int = 1,
        upcast: Mapping[int, Callable[[Any], Any]] | None = None,
        to_data: Callable[[Any], Any] | None = None,
        from_data: Callable[[Any], Any] | None = None,
    ) -> None:
        """Let values of `cls` be stored; `checkpoint.register` is this method of the shared registry.

        Enums, dataclasses, attrs classes, pydantic models, named tuples and msgspec Structs need nothing else. Any
        other type brings `to_data` and `from_data`; each save of such a value rebuilds it and compares, so that a lossy
        pair is found then.

        Args:
            tag: A stable name, kept over renames of the class: letters, digits, ``_ . : -``.
            cls: The type, exactly; subclasses need a tag of their own.
            version: The schema version that is written, from 1 up.
            upcast: Version → function that turns data of that version into data of the next one. The data of a
                dataclass, attrs class, model, named tuple or Struct is a dict of its fields; that of an Enum its
                member's name.
            to_data: Value → data that can be stored.
            from_data: Data → value.

        Raises:
            RegistrationError: The tag is malformed or taken, the class has a tag already, or a way to store it is
                missing.

        Example:
            >>> import checkpoint
            >>> from dataclasses import dataclass
            >>> @dataclass
            ... class Line:
            ...     item: str
            ...     count: int = 1
            >>> checkpoint.register("shop.Line", Line, version=2, upcast={1: lambda data: {"item": data["name"]}})
            >>> checkpoint.loads(checkpoint.dumps(Line("tea", 2)))
            Line(item='tea', count=2)
        """
        steps = dict(upcast or {})
        if not _TAG.fullmatch(tag):
            raise RegistrationError(str(tag), "the tag must be letters, digits, '_', '.', ':' or '-', at most 100 long")
        if type(version) is not int or version < 1:
            raise RegistrationError(tag, f"version must be an int from 1 up, got {version!r}")
        if not isinstance(cls, type):
            raise RegistrationError(tag, f"cls must be a type, got {cls!r}")
        if wrong := [step for step in steps if type(step) is not int or not 1 <= step < version]:
            raise RegistrationError(tag, f"upcast keys must be versions from 1 to {version - 1}, got {wrong[0]!r}")
        self._refuse_taken(tag, cls)
        if (to_data is None) != (from_data is None):
            raise RegistrationError(tag, "give both to_data and from_data, or neither")
        checked = to_data is not None or (issubclass(cls, msgspec.Struct) and hasattr(cls, "__post_init__"))
        if to_data is None or from_data is None:
            to_data, from_data = adapter(tag, cls)
        registration = Registration(tag, cls, version, steps, to_data, from_data, checked)
        self._by_class[cls] = registration
        self._by_tag[tag] = registration

    def for_class(self, cls: type) -> Registration | None:
        """Return how values of exactly this class are stored, or None."""
        return self._by_class.get(cls)

    def for_tag(self, tag: str) -> Registration | None:
        """Return the registration of a tag, or None."""
        return self._by_tag.get(tag)

    def _refuse_taken(self, tag: str, cls: type) -> None:
        known = self._by_tag.get(tag)
        if known is not None and known.cls is not cls:
            # A reloaded module defines its classes anew; that is the same type to its author.
            if (known.cls.__module__, known.cls.__qualname__) != (cls.__module__, cls.__qualname__):
                raise RegistrationError(tag, f"the tag belongs to {known.cls.__qualname__} already; choose another")
            self._by_class.pop(known.cls, None)
        other = self._by_class.get(cls)
        if other is not None and other.tag != tag:
            raise RegistrationError(tag, f"{cls.__qualname__} is registered as {other.tag!r} already; keep that tag")


#: The registry that the codec uses.
registry = Registry()
