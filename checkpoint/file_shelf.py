"""The folder of one run in a file store: what is read of it, and in which order it is written.

A save adds the new messages to a log, gives the checkpoint its file, and then gives `head.json` its new content; each is
lasting before the next one begins. The last one is the commit: `head.json` says which files count, and how much of the
log. What a process leaves behind that dies before it is never read, and the next save writes over it.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from checkpoint import disk
from checkpoint.ancestry import Ancestry, Stretch
from checkpoint.errors import CheckpointCorrupted, CorruptedBytes
from checkpoint.file_documents import (
    FileTip,
    Line,
    dump_checkpoint,
    dump_head,
    dump_message,
    load_checkpoint,
    load_head,
    load_message,
)
from checkpoint.file_names import HEAD, checkpoint_name, log_name, log_of, place_of
from checkpoint.kept import Kept
from checkpoint.segments import length_of
from checkpoint.tip import Tip
from checkpoint.verifying import Damage, Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from checkpoint.record import Record
    from checkpoint.segments import Segments
    from checkpoint.succession import Succession

_logger = logging.getLogger(__name__)


class FileShelf:
    """One run's folder, for as long as its lock is held.

    Args:
        folder: The folder; it need not be there.
        run_id: The run.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id
        self._found: FileTip | None = None
        self._is_read = False
        #: Whether `append` got so far that nobody can tell whether the checkpoint counts.
        self.committing = False

    def tip(self) -> Tip | None:
        head = self._head()
        return None if head is None else head.tip

    def kept(self, line: int, seq: int) -> Kept | None:
        head = self._head()
        if head is None or not any(one.line == line and one.first <= seq <= one.last for one in head.lines):
            return None
        return self._checkpoint(line, seq)

    def messages(self, segments: Segments, start: int) -> Iterator[Message]:
        first = 0  # a log begins where the segment that it was started for does
        for segment in segments:
            if segment.until > max(start, first):
                yield from self._messages(segment.log, first, max(start, first), segment.until)
            first = segment.until

    def places(self) -> list[tuple[int, int]]:
        head = self._head()
        lines = () if head is None else head.lines
        return [(line.line, seq) for line in lines for seq in range(line.first, line.last + 1)]

    def append(self, record: Record, tip: Tip | None, succession: Succession) -> None:
        moved, head = succession.moved, self._head()
        self._refuse_to_write_over_history(record, tip)
        size = self._log_size(head, moved, succession.written_from)
        rows = range(succession.written_from, len(record.items))
        lines = b"".join(dump_message(row, record.chain[row + 1], record.items[row]) for row in rows)
        checkpoint = dump_checkpoint(Kept.of(record, succession))
        if not self._folder.is_dir():
            self._folder.mkdir()
            disk.sync_folder(self._folder.parent)
        if lines:
            disk.append(self._folder / log_name(moved.segments[-1].log), size, lines)
        disk.replace(self._folder / checkpoint_name(record.line, record.seq), checkpoint)
        disk.sync_folder(self._folder)
        counted = _lines_after(() if head is None else head.lines, moved)
        content = dump_head(self._run_id, FileTip(moved, counted, size + len(lines)))
        self.committing = True
        disk.replace(self._folder / HEAD, content)
        disk.sync_folder(self._folder)

    def rewrite(self, kept: Kept) -> None:
        """Give a checkpoint that stands there already another content."""
        disk.replace(self._folder / checkpoint_name(kept.line, kept.seq), dump_checkpoint(kept))
        disk.sync_folder(self._folder)

    def stored(self, line: int, seq: int) -> tuple[Kept, bytes]:
        """Return what a checkpoint's file says, and the checksum that stands in it, which is not compared.

        Raises:
            Damage: It cannot be read, or is of another place.
        """
        try:
            kept, told = load_checkpoint((self._folder / checkpoint_name(line, seq)).read_bytes())
        except FileNotFoundError as error:
            raise Damage("its file is missing") from error
        except CorruptedBytes as error:
            raise Damage(f"its file: {error.reason}") from error
        if (kept.run_id, kept.line, kept.seq) != (self._run_id, line, seq):
            raise Damage(f"its file is of line {kept.line}, seq {kept.seq} of run {kept.run_id!r}")
        return kept, told

    def clear(self) -> None:
        if not self._folder.is_dir():
            return
        # The head goes first: without it nothing of the rest counts to whoever reads, should this process die here.
        for path in sorted(self._folder.iterdir(), key=lambda path: path.name != HEAD):
            if _is_ours(path.name):
                path.unlink()
        with suppress(OSError):  # somebody keeps a file of his own there
            self._folder.rmdir()
        disk.sync_folder(self._folder.parent)

    def _head(self) -> FileTip | None:
        if not self._is_read:
            self._found = self._read_head()
            self._is_read = True
        return self._found

    def _read_head(self) -> FileTip | None:
        try:
            return load_head((self._folder / HEAD).read_bytes(), self._run_id)
        except FileNotFoundError:
            why = "it is missing"
            if not self._files():
                return None
        except CorruptedBytes as error:
            why = error.reason
        head = self._head_of_files(why)
        _logger.warning(
            "%s of run %r cannot be used: %s; by its checkpoints the run stands at (line %d, seq %d)",
            HEAD,
            self._run_id,
            why,
            head.tip.line,
            head.tip.seq,
        )
        return head

    def _checkpoint(self, line: int, seq: int) -> Kept:
        kept, told = self.stored(line, seq)
        if kept.checksum() != told:
            raise Damage("its file does not match its checksum; if it was edited on purpose, reseal it")
        return kept

    def _messages(self, log: int, first: int, start: int, until: int) -> Iterator[Message]:
        try:
            lines = _lines((self._folder / log_name(log)).read_bytes())
        except FileNotFoundError as error:
            raise Damage(f"{log_name(log)} is missing", (log, start)) from error
        for position in range(start, until):
            if position - first >= len(lines):
                raise Damage(f"its message {position} is missing in {log_name(log)}", (log, position))
            try:
                told, link, item = load_message(lines[position - first])
            except CorruptedBytes as error:
                raise Damage(f"its message {position} in {log_name(log)}: {error.reason}", (log, position)) from error
            if told != position:
                raise Damage(f"its message {position} is missing in {log_name(log)}", (log, position))
            yield Message(log, position, link, item)

    def _log_size(self, head: FileTip | None, moved: Tip, written_from: int) -> int:
        """Return the size up to which the log that is written to counts."""
        segments = () if head is None else head.tip.segments
        if head is None or not segments or segments[-1].log != moved.segments[-1].log:
            return 0  # a new log; a file of its name was left behind
        path = self._folder / log_name(segments[-1].log)
        found = path.stat().st_size if path.exists() else 0
        if found == head.log_bytes:
            return found
        # Somebody died while he added to it, or Git changed its line ends.
        wanted = written_from - length_of(segments[:-1])
        lines = _lines(path.read_bytes()) if found else []
        try:
            if len(lines) < wanted or (wanted and load_message(lines[wanted - 1])[1] != head.tip.chain):
                raise CorruptedBytes("the head's last message is not where it was")
        except CorruptedBytes as error:
            reason = f"{path.name}: {error.reason}"
            raise CheckpointCorrupted(self._run_id, head.tip.line, head.tip.seq, reason) from error
        return sum(len(line) + 1 for line in lines[:wanted])

    def _refuse_to_write_over_history(self, record: Record, tip: Tip | None) -> None:
        later = checkpoint_name(record.line, record.seq + 1)
        if (self._folder / later).exists():
            reason = (
                f"{HEAD} is older than {later}; put the files of the run back together, or remove {HEAD}: then the run "
                "stands at its newest checkpoint"
            )
            place = (0, 0) if tip is None else (tip.line, tip.seq)
            raise CheckpointCorrupted(self._run_id, *place, reason)

    def _files(self) -> list[tuple[int, int]]:
        if not self._folder.is_dir():
            return []
        return sorted(place for path in self._folder.iterdir() if (place := place_of(path.name)) is not None)

    def _head_of_files(self, why: str) -> FileTip:
        """Return where the run stands by its checkpoints alone: at the newest that is whole."""
        places = self._files()
        found: dict[int, list[int]] = {}
        for line, seq in places:
            found.setdefault(line, []).append(seq)
        lines = tuple(Line(line, seqs[0], seqs[-1]) for line, seqs in found.items())
        for line, seq in reversed(places):
            with suppress(Damage):
                newest = self._checkpoint(line, seq)
                logs = [log_of(path.name) for path in self._folder.iterdir()]
                used = [segment.log for segment in newest.segments]
                count = 1 + max([*used, *(log for log in logs if log is not None)], default=-1)
                ancestry = self._ancestry_of(newest, lines)
                return FileTip(Tip(line, seq, newest.segments, newest.chain, count, ancestry), lines, -1)
        line, seq = places[-1] if places else (0, 0)
        raise CheckpointCorrupted(self._run_id, line, seq, f"{HEAD}: {why}, and no checkpoint is whole")

    def _ancestry_of(self, newest: Kept, lines: tuple[Line, ...]) -> Ancestry:
        firsts = {line.line: line.first for line in lines}
        stretches: list[Stretch] = []
        line: int | None = newest.line
        while line is not None and line in firsts and len(stretches) < len(firsts):
            stretches.append(Stretch(line, firsts[line]))
            try:
                line = self._checkpoint(line, firsts[line]).parent_line
            except Damage:
                line = None  # nobody knows what it followed
        return tuple(reversed(stretches))


def _is_ours(name: str) -> bool:
    name = name.removesuffix(".tmp")
    return name == HEAD or place_of(name) is not None or log_of(name) is not None


def _lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _lines_after(lines: tuple[Line, ...], moved: Tip) -> tuple[Line, ...]:
    if lines and lines[-1].line == moved.line:
        return (*lines[:-1], Line(moved.line, lines[-1].first, moved.seq))
    return (*lines, Line(moved.line, moved.seq, moved.seq))
