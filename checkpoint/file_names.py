"""What the folders and files of a file store are called, whatever a run is called.

A run id of small letters, digits and ``. _ -`` names its folder. Any other one, such as ``../x``, ``Order/7``, ``con`` or
one that is very long, gets a folder whose name ends with ``~`` and a digest of the id. So no id leads out of the store, and
none meets another one on a file system that takes ``A`` for ``a``.
"""

from __future__ import annotations

import re
from hashlib import blake2b

#: Says where the run stands.
HEAD = "head.json"

_PLAIN = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9_-])?", re.ASCII)
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.ASCII)  # what Windows keeps for itself
_OTHER = re.compile(r"[^a-z0-9-]+", re.ASCII)
_CHECKPOINT = re.compile(r"(0|[1-9]\d{0,9})(?:\.line-([1-9]\d{0,9}))?\.json", re.ASCII)
_LOG = re.compile(r"messages-(0|[1-9]\d{0,9})\.jsonl", re.ASCII)


def folder_name(run_id: str) -> str:
    """Return the name of a run's folder.

    Example:
        >>> folder_name("order-7"), folder_name("../etc/Order 7")
        ('order-7', 'etc-order-7~7d095a89eeef99edbef2508a6719db60')
    """
    if _PLAIN.fullmatch(run_id) and not _DEVICE.fullmatch(run_id):
        return run_id
    slug = _OTHER.sub("-", run_id.lower())[:60].strip("-")
    digest = blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=16, person=b"checkpoint.run").hexdigest()
    return f"{slug}~{digest}"


def checkpoint_name(line: int, seq: int) -> str:
    """Return the name of a checkpoint's file.

    Example:
        >>> checkpoint_name(0, 7), checkpoint_name(2, 7)
        ('7.json', '7.line-2.json')
    """
    return f"{seq}.line-{line}.json" if line else f"{seq}.json"


def place_of(name: str) -> tuple[int, int] | None:
    """Return line and seq of a checkpoint's file, or None for any other file."""
    found = _CHECKPOINT.fullmatch(name)
    return None if found is None else (int(found[2] or 0), int(found[1]))


def log_name(log: int) -> str:
    """Return the name of a log's file."""
    return f"messages-{log}.jsonl"


def log_of(name: str) -> int | None:
    """Return the number of a log's file, or None for any other file."""
    found = _LOG.fullmatch(name)
    return None if found is None else int(found[1])
