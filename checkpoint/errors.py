"""What can go wrong with a checkpoint.

Every error keeps its facts in ``args``, in the order of its constructor, so that it survives pickling and Celery's
result backends; the message is built from them when it is read.
"""


class CheckpointError(Exception):
    """Base of every error that this package raises."""


class UnstorableValue(CheckpointError):
    """A value would not come back equal and of its own type, so it is not saved.

    Args:
        path: Where the value is, such as ``agent_state['cart'][3].price``.
        reason: Why it cannot be stored and what to do about it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} cannot be stored: {self.reason}"


class CorruptedBytes(CheckpointError):
    """Bytes that this codec did not write, or that changed after it wrote them.

    Args:
        reason: What is wrong with them.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"these bytes are not a stored value: {self.reason}"


class UnreadableValue(CheckpointError):
    """Intact bytes that the code of this process cannot turn into a value.

    The data is whole; a type's upcast, its factory or an optional package is what is missing.

    Args:
        tag: The registered tag, or the name of the built-in kind.
        version: The schema version in the bytes; 0 for a built-in kind.
        reason: What failed and what to do about it.
    """

    def __init__(self, tag: str, version: int, reason: str) -> None:
        super().__init__(tag, version, reason)
        self.tag = tag
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"a stored {self.tag!r} (version {self.version}) cannot be read: {self.reason}"


class RegistrationError(CheckpointError):
    """A type cannot be registered as asked.

    Args:
        tag: The tag of the registration.
        reason: What is wrong with it.
    """

    def __init__(self, tag: str, reason: str) -> None:
        super().__init__(tag, reason)
        self.tag = tag
        self.reason = reason

    def __str__(self) -> str:
        return f"register({self.tag!r}, …): {self.reason}"


class KeyringError(CheckpointError):
    """Keys that cannot encrypt.

    Args:
        reason: What is wrong with them, or what is missing.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this keyring will not do: {self.reason}"


class CheckpointConflict(CheckpointError):
    """The run's head is not where this save expects it; nothing was written.

    Args:
        run_id: The run.
        line: The line of the refused checkpoint.
        seq: Its seq.
        reason: Where the head is and what to do.
    """

    def __init__(self, run_id: str, line: int, seq: int, reason: str) -> None:
        super().__init__(run_id, line, seq, reason)
        self.run_id = run_id
        self.line = line
        self.seq = seq
        self.reason = reason

    def __str__(self) -> str:
        return f"checkpoint (line {self.line}, seq {self.seq}) of run {self.run_id!r} was not saved: {self.reason}"


class CheckpointCorrupted(CheckpointError):
    """The stored bytes of a checkpoint fail their checksum; they never become state.

    Args:
        run_id: The run.
        line: The line of the checkpoint.
        seq: Its seq.
        reason: Which part failed.
    """

    def __init__(self, run_id: str, line: int, seq: int, reason: str) -> None:
        super().__init__(run_id, line, seq, reason)
        self.run_id = run_id
        self.line = line
        self.seq = seq
        self.reason = reason

    def __str__(self) -> str:
        return f"checkpoint (line {self.line}, seq {self.seq}) of run {self.run_id!r} is corrupted: {self.reason}"


class CheckpointUnhealthy(CheckpointError):
    """A checkpoint is whole, and the caller's health check speaks against it.

    Args:
        run_id: The run.
        line: The line of the checkpoint.
        seq: Its seq.
        reason: What the check says.
    """

    def __init__(self, run_id: str, line: int, seq: int, reason: str) -> None:
        super().__init__(run_id, line, seq, reason)
        self.run_id = run_id
        self.line = line
        self.seq = seq
        self.reason = reason

    def __str__(self) -> str:
        return f"checkpoint (line {self.line}, seq {self.seq}) of run {self.run_id!r} must not be used: {self.reason}"


class CheckpointNotFound(CheckpointError):
    """No such checkpoint.

    Args:
        run_id: The run.
        seq: The seq that was asked for.
        line: The line that was asked for, or None for the head's ancestry.
        reason: What there is instead.
    """

    def __init__(self, run_id: str, seq: int, line: int | None, reason: str) -> None:
        super().__init__(run_id, seq, line, reason)
        self.run_id = run_id
        self.seq = seq
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        place = f"seq {self.seq}" if self.line is None else f"line {self.line}, seq {self.seq}"
        return f"run {self.run_id!r} has no checkpoint at {place}: {self.reason}"


class UnknownStore(CheckpointError):
    """A URL names no store of this package.

    Args:
        url: The URL, without its password.
        reason: The nearest scheme, or all of them.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"no checkpoint store for {self.url!r}: {self.reason}"


class UnsuitableServer(CheckpointError):
    """A database server on which no store keeps its promises.

    Args:
        reason: What is wrong with it and what to do about it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"this database server will not do: {self.reason}"


class UnsuitableStore(CheckpointError):
    """A store that cannot keep what it promises where it is used.

    Args:
        store: The store, as its URL.
        reason: What is wrong there and what to use instead.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.store} cannot be used here: {self.reason}"


class StoreUnavailable(CheckpointError):
    """The disk or the folder of a store refused what was asked, such as a full disk or a missing right.

    Args:
        store: The store, as its URL.
        reason: What was refused, and whether anything was written.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.store}: {self.reason}"
