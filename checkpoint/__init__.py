"""Checkpoints of long runs: an exact codec, a hash chain over messages, and stores that grow linearly."""

from checkpoint.codec import digest, dumps, loads
from checkpoint.errors import (
    CheckpointConflict,
    CheckpointCorrupted,
    CheckpointError,
    CheckpointNotFound,
    CheckpointUnhealthy,
    CorruptedBytes,
    KeyringError,
    RegistrationError,
    StoreUnavailable,
    UnknownStore,
    UnreadableValue,
    UnstorableValue,
    UnsuitableServer,
    UnsuitableStore,
)
from checkpoint.file import FileStore
from checkpoint.keyring import Keyring
from checkpoint.memory import MemoryStore
from checkpoint.opening import open_store
from checkpoint.registry import registry
from checkpoint.resealing import reseal
from checkpoint.snapshot import Snapshot
from checkpoint.sql import SqlStore
from checkpoint.state import CheckpointState, CheckpointSummary, Position
from checkpoint.store import CheckpointStore
from checkpoint.values import Opaque, Secret

register = registry.register

__all__ = [
    "CheckpointConflict",
    "CheckpointCorrupted",
    "CheckpointError",
    "CheckpointNotFound",
    "CheckpointState",
    "CheckpointStore",
    "CheckpointSummary",
    "CheckpointUnhealthy",
    "CorruptedBytes",
    "FileStore",
    "Keyring",
    "KeyringError",
    "MemoryStore",
    "Opaque",
    "Position",
    "RegistrationError",
    "Secret",
    "Snapshot",
    "SqlStore",
    "StoreUnavailable",
    "UnknownStore",
    "UnreadableValue",
    "UnstorableValue",
    "UnsuitableServer",
    "UnsuitableStore",
    "digest",
    "dumps",
    "loads",
    "open_store",
    "register",
    "reseal",
]
