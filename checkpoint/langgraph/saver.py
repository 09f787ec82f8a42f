"""The saver: LangGraph's methods, each of them once; the asynchronous ones run the others in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from checkpoint.columns import MYSQL
from checkpoint.errors import UnstorableValue
from checkpoint.langgraph import serial, upkeep
from checkpoint.langgraph.errors import ThreadConflict
from checkpoint.langgraph.history import delta_history
from checkpoint.langgraph.known import Known, Memory
from checkpoint.langgraph.lists import Coding
from checkpoint.langgraph.packing import pack_checkpoint, pack_write
from checkpoint.langgraph.places import Addressed, Latest, Place, checked, checked_id, place_of
from checkpoint.langgraph.reader import Loads, Values, checkpoints_query, found, wanted_of
from checkpoint.langgraph.refs import Blobs
from checkpoint.langgraph.tables import MAX_ID_LENGTH, tables_of
from checkpoint.langgraph.threaded import Threaded
from checkpoint.langgraph.tuples import matches, pages, tuple_of
from checkpoint.langgraph.writer import Expects, Put, was_taken_back, write_put, write_writes
from checkpoint.mysql import alone
from checkpoint.sql import SqlStore

_STRATEGIES = ("keep_latest", "delete")

#: How often a transaction is tried that the server takes back; each time another one got on.
_TRIES = 10

T = TypeVar("T")


class CheckpointSaver(Threaded):
    """A LangGraph checkpointer that grows with what a run adds, and lets one writer at a time go on with a thread.

    Safe to share between threads and event loops: nothing is locked but rows, and each call takes a connection of its own.
    Of two writers that go on from the same checkpoint one gets `ThreadConflict`; a checkpoint that is addressed by its id and
    is not the newest may be forked.

    Args:
        store: The SQL store whose database is used; `open_store` opens one. It stays the caller's to close.
        prefix: What the tables' names begin with.
        allowed: Types beside LangGraph's own that are restored as such, or their (module, name); values of others come back as
            plain data, as with LANGGRAPH_STRICT_MSGPACK.
        serde: A serializer of LangGraph's instead, such as its EncryptedSerializer.

    Raises:
        TypeError: The store is none of SQL.
        ValueError: Both `allowed` and `serde` are given, or the latter imports whatever data names.

    Example:
        >>> from langgraph.graph import START, MessagesState, StateGraph
        >>> from checkpoint import open_store
        >>> from checkpoint.langgraph import CheckpointSaver
        >>> store = open_store("sqlite:///" + directory + "/threads.db")
        >>> saver = CheckpointSaver(store)
        >>> saver.create_schema()
        >>> graph = StateGraph(MessagesState).add_node("agent", lambda state: {"messages": [("ai", "Tea is ordered.")]})
        >>> graph = graph.add_edge(START, "agent").compile(checkpointer=saver)
        >>> config = {"configurable": {"thread_id": "order-7"}}
        >>> state = graph.invoke({"messages": [("user", "Order tea.")]}, config)
        >>> [message.content for message in graph.get_state(config).values["messages"]]
        ['Order tea.', 'Tea is ordered.']
        >>> store.close()
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        prefix: str = "langgraph_",
        allowed: Iterable[type | tuple[str, str]] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        if not isinstance(store, SqlStore):
            raise TypeError(
                f"store must be an SqlStore, got {type(store).__name__}; open one with checkpoint.open_store('sqlite:///…')"
            )
        allowed = tuple(allowed)
        if serde is not None and allowed:
            raise ValueError("allowed and serde must not both be given: the serializer has an allow-list of its own")
        super().__init__(serde=serial.serializer(allowed) if serde is None else serde)
        serial.refuse_permissive(self.serde)
        self._store = store
        self._tables = tables_of(prefix)
        self._memory = Memory()

    @property
    def metadata(self) -> MetaData:
        """The tables, for migrations of the caller's own."""
        return self._tables.spaces.metadata

    def create_schema(self, connection: Connection | None = None) -> None:
        """Create the tables that are missing.

        Args:
            connection: Do it in the caller's transaction.
        """
        with self._store._transaction(connection) as own:
            # Two processes that create at once would collide in the catalog.
            name = self._tables.spaces.name
            if own.dialect.name == "postgresql":
                own.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
            with alone(own, name) if own.dialect.name in MYSQL else nullcontext():
                self.metadata.create_all(own)

    def setup(self) -> None:
        """Do what `create_schema` does, by the name that LangGraph's own savers have for it."""
        self.create_schema()

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint after the one that the config names; one statement on PostgreSQL.

        Args:
            config: The thread, the namespace and the parent.
            checkpoint: The checkpoint.
            metadata: Of the checkpoint.
            new_versions: The channels that changed.

        Returns:
            The config that names the checkpoint.

        Raises:
            ThreadConflict: Somebody else went on from the parent, or removed the thread; nothing was written.
            UnstorableValue: A value is larger than what a row can hold; nothing was written.
        """
        place = place_of(config)
        checkpoint_id = checked_id("checkpoint['id']", checkpoint["id"])
        expects = self._expected(config, place, metadata)
        full = get_serializable_checkpoint_metadata(config, metadata)
        follows = expects is Expects.PARENT_IS_HEAD
        known = self._memory.get(place.space, place.checkpoint_id) if follows else None
        try:
            written, now = self._put(place, expects, checkpoint, full, new_versions, known)
        except IntegrityError:
            if known is None:
                raise
            self._memory.forget(place.space)  # it was not as remembered; without it nothing is taken for written
            written, now = self._put(place, expects, checkpoint, full, new_versions, None)
        except BaseException:
            self._memory.forget(place.space)
            raise
        if not written:
            self._memory.forget(place.space)
            raise ThreadConflict(place.thread_id, place.checkpoint_ns, checkpoint_id, self._instead(place))
        self._memory.put(place.space, now)
        return cast("RunnableConfig", place.config(Latest(checkpoint_id)))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Save what a task wrote on a checkpoint, which may itself not be saved yet.

        Args:
            config: The thread, the namespace and the checkpoint.
            writes: Channels and values.
            task_id: The task.
            task_path: Its place among its step's tasks.

        Raises:
            UnstorableValue: A value is larger than what a row can hold; nothing was written.
        """
        place = place_of(config)
        if place.checkpoint_id is None:
            raise ValueError("config['configurable'] must have the checkpoint_id on which the task runs")
        blobs: Blobs = {}
        rows = [
            {
                "task_id": checked_id("task_id", task_id),
                "idx": WRITES_IDX_MAP.get(channel, index),
                "task_path": checked("task_path", task_path),
                "channel": checked("channel", channel),
                "value": pack_write(value, self._coding, blobs),
            }
            for index, (channel, value) in enumerate(writes)
        ]
        rows = list({row["idx"]: row for row in rows}.values())
        if rows:
            again = all(channel in WRITES_IDX_MAP for channel, _ in writes)
            self._write(
                f"writes of task {task_id!r} of thread {place.thread_id!r}",
                lambda own: write_writes(own, self._tables, place, rows, blobs, again=again),
            )

    def _expected(self, config: RunnableConfig, place: Place, metadata: CheckpointMetadata) -> Expects:
        if place.checkpoint_id is None:
            # A subgraph that is replayed may begin anew beside what it has; the graph around it sees to who goes on.
            empty = place.checkpoint_ns == "" and self._memory.was_empty(place.space)
            return Expects.EMPTY if empty else Expects.ANYTHING
        parent = config["configurable"]["checkpoint_id"]
        # A step of a run follows what the run saved before. What begins something new may begin it anywhere.
        if isinstance(parent, Latest) or (metadata.get("source") == "loop" and not isinstance(parent, Addressed)):
            return Expects.PARENT_IS_HEAD
        return Expects.ANYTHING

    def _put(
        self,
        place: Place,
        expects: Expects,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        known: Known | None,
    ) -> tuple[bool, Known]:
        packed = pack_checkpoint(checkpoint, new_versions, known, self._coding)
        run_id = metadata.get("run_id")
        row = {
            "checkpoint_id": packed.known.checkpoint_id,
            "parent_id": place.checkpoint_id,
            "run_id": run_id if isinstance(run_id, str) and len(run_id) <= MAX_ID_LENGTH else None,
            "body": packed.body,
            "metadata": self._coding.item_of(dict(metadata)),
        }
        put = Put(place, expects, row, packed.chunks, packed.blobs)
        what = f"checkpoint {checkpoint['id']} of thread {place.thread_id!r}"
        return self._write(what, lambda own: write_put(own, self._tables, put)), packed.known

    def _instead(self, place: Place) -> str:
        spaces = self._tables.spaces
        with self._store._snapshot(None) as own:
            head = own.scalar(spaces.select().with_only_columns(spaces.c.head).where(spaces.c.space == place.space))
        if head is None:
            return "the thread was deleted meanwhile; begin it anew without a checkpoint_id"
        return (
            f"it would follow {place.checkpoint_id or 'nothing'}, and the head is {head} meanwhile; invoke the graph again without "
            "a checkpoint_id to go on from there, or with one to fork"
        )

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the head of the thread and namespace if it names none.

        Args:
            config: The thread, the namespace, and perhaps the checkpoint.

        Returns:
            None if there is no such checkpoint.

        Raises:
            ThreadCorrupted: Its bytes fail their checksum, or some of them are missing.
        """
        place = place_of(config)
        checkpoints, spaces = self._tables.checkpoints, self._tables.spaces
        query = checkpoints_query(self._tables).where(checkpoints.c.space == place.space)
        wanted = spaces.c.head if place.checkpoint_id is None else place.checkpoint_id
        with self._store._snapshot(None) as own:
            one = found(own, self._tables, own.execute(query.where(checkpoints.c.checkpoint_id == wanted)).all())
            values = Values(own, self._tables, wanted_of(one))
        if not one:
            if place.checkpoint_id is None:
                self._memory.found_empty(place.space)
            return None
        row = one[0].row
        is_head = row.head == row.checkpoint_id
        result, known = tuple_of(one[0], values, self._loads, Latest if is_head else Addressed)
        if is_head:
            self._memory.put(place.space, known)
        return result

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 the name is LangGraph's
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first.

        Args:
            config: The thread, and perhaps a namespace and a checkpoint; None for all threads.
            filter: What their metadata must equal, by any keys; they never become part of a statement.
            before: Only checkpoints with an id before this config's.
            limit: How many at most.

        Raises:
            ThreadCorrupted: The bytes of one fail their checksum, or some of them are missing.
        """
        left = limit
        for page in pages(self._store, self._tables, config, before):
            matching = [row for row in page if matches(self._loads(bytes(row.metadata)), filter)][:left]
            with self._store._snapshot(None) as own:
                some = found(own, self._tables, matching)
                values = Values(own, self._tables, wanted_of(some))
            for each in some:
                yield tuple_of(each, values, self._loads, Addressed)[0]
            if left is not None:
                left -= len(matching)
                if left <= 0:
                    return

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what channels got on the way to a checkpoint, and the value that they had before.

        Args:
            config: The checkpoint, or the head if it names none.
            channels: Their names.
        """
        place = place_of(config)
        if not channels:
            return {}
        spaces = self._tables.spaces
        with self._store._snapshot(None) as own:
            at = place.checkpoint_id or own.scalar(
                spaces.select().with_only_columns(spaces.c.head).where(spaces.c.space == place.space)
            )
            if at is None:
                return {channel: {"writes": []} for channel in channels}
            history = delta_history(own, self._tables, place.space, at, channels, self._loads)
        return cast("Mapping[str, DeltaChannelHistory]", history)

    # Upkeep

    def delete_thread(self, thread_id: str) -> None:
        """Remove everything of a thread, in all namespaces; no error if there is nothing.

        Args:
            thread_id: The thread.
        """
        thread_id = checked("thread_id", thread_id)
        self._forget(self._change(lambda own: upkeep.delete_thread(own, self._tables, thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that runs made, with their writes, in all threads.

        A thread of which some remain stands at the newest of them. One with delta channels may lose what they are put
        together from.

        Args:
            run_ids: The ids, as the metadata has them.
        """
        runs = [checked("run_id", run_id) for run_id in run_ids]
        self._forget(self._change(lambda own: upkeep.delete_runs(own, self._tables, runs)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to a thread that has nothing.

        Args:
            source_thread_id: The thread.
            target_thread_id: The new one.

        Raises:
            ValueError: The target has checkpoints.
        """
        source, target = checked("source_thread_id", source_thread_id), checked("target_thread_id", target_thread_id)
        self._change(lambda own: upkeep.copy_thread(own, self._tables, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove what threads need no more.

        Args:
            thread_ids: The threads.
            strategy: ``keep_latest`` keeps, in each namespace, the head with its tasks' writes, and of delta channels the
                checkpoints that it is put together from. ``delete`` keeps nothing.

        Raises:
            ValueError: The strategy is another one.
        """
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(_STRATEGIES)}, got {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._keep_latest(checked("thread_id", thread_id))

    def _keep_latest(self, thread_id: str) -> None:
        self._change(lambda own: upkeep.keep_latest(own, self._tables, thread_id, self._delta_channels))

    def _delta_channels(self, metadata: bytes) -> Iterable[str]:
        counters = self._loads(bytes(metadata)).get("counters_since_delta_snapshot") or {}
        return [str(channel) for channel in counters]

    # What the others share

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after `current`: the next number, as values are found by their content and not by versions.

        A thread that came here from a saver with versions of text goes on with text.
        """
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}"
        return super().get_next_version(current, channel)

    def _write(self, what: str, work: Callable[[Connection], T]) -> T:
        # PostgreSQL writes in one statement, which needs no transaction and so two round trips less.
        try:
            return self._change(work, isolation="AUTOCOMMIT" if self._store._at_once else "READ COMMITTED")
        except DataError as error:
            raise UnstorableValue(what, f"the database refuses {error.orig}") from error

    def _change(self, work: Callable[[Connection], T], isolation: str = "READ COMMITTED") -> T:
        """Carry out a transaction, and again where the server took back all of it for another one that waits for it."""
        for tried in range(1, _TRIES + 1):
            try:
                with self._store._transaction(None, isolation=isolation) as own:
                    return work(own)
            except DBAPIError as error:
                if tried == _TRIES or not was_taken_back(error):
                    raise
        raise AssertionError  # the last try returns or raises

    @property
    def _coding(self) -> Coding:
        return Coding(lambda value: serial.dumps(self.serde, value), serial.plain(self.serde))

    @property
    def _loads(self) -> Loads:
        return serial.loader(self.serde)

    def _forget(self, spaces: Iterable[bytes]) -> None:
        for space in spaces:
            self._memory.forget(space)
