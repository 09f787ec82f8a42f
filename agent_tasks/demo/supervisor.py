"""The processes of the demo: each leads a session of its own, is started again when it is killed, and never outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import final

from agent_tasks.demo.vendor import Vendor

__all__ = ["Fleet", "ProcessEnded", "Supervised", "open_shop"]

#: How many workers each side of the demo has, so that one can take over from another.
_FLEET = 2
#: How long a process may take to stop by itself, in seconds. Celery would wait ten for a child that was killed, and in the
#: demo nothing is left to wait for.
_STOP_SECONDS = 2.0
#: How long the shop may take to start, in seconds.
_START_SECONDS = 30.0


class ProcessEnded(RuntimeError):
    """A process ended although nobody killed it; the message holds the end of its log."""


@final
class Supervised:
    """One process and its children. What systemd does for a worker, in little.

    Args:
        command: The command line.
        environ: Its environment.
        log: The file that gets what it prints.
        name: What messages call it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with Supervised(["sleep", "60"], os.environ, Path(folder) / "log", "sleeper") as process:
        ...         os.killpg(process.pid, signal.SIGKILL)
        ...         while not process.tend():
        ...             time.sleep(0.01)
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, name: str) -> None:
        self.name = name
        self._command, self._environ, self._log = command, environ, log
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        assert self._process is not None, "enter it first"
        return self._process.pid

    def __enter__(self) -> Supervised:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def tend(self) -> bool:
        """Start the process again if it was killed.

        Returns:
            Whether it was.

        Raises:
            ProcessEnded: It ended in another way, and would again.
        """
        assert self._process is not None, "enter it first"
        code = self._process.poll()
        if code is None:
            return False
        if code != -signal.SIGKILL:
            raise ProcessEnded(
                f"{self.name} (process {self._process.pid}) ended by itself with exit code {code}; {self._log} ends with\n{self._said()}"
            )
        self._kill_group()
        self._start()
        return True

    def ask_to_stop(self) -> None:
        """Send SIGTERM and do not wait, so that several processes stop at the same time."""
        if self._process is not None and not self._asked_to_stop:
            self._asked_to_stop = True  # a second SIGTERM would tell a Celery worker to drop what it has begun
            self._process.terminate()

    def stop(self) -> None:
        """Ask the process to stop, and end what is left of its group after a while."""
        if self._process is None:
            return
        try:
            self.ask_to_stop()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        finally:
            self._kill_group()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._asked_to_stop = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A whole worker is killed as a group, and Ctrl-C at the terminal is for the demo alone.
                start_new_session=True,
            )

    def _kill_group(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _said(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


@final
class Fleet:
    """The workers of one side.

    Args:
        command: The command line of the worker of a name.
        environ: Their environment.
        folder: Gets their logs and temporary files.
    """

    def __init__(self, command: Callable[[str], Sequence[str]], environ: Mapping[str, str], folder: Path) -> None:
        names = [f"worker{number}" for number in range(1, _FLEET + 1)]
        # A killed worker leaves its temporary files behind; they go with the folder.
        environ = {**environ, "TMPDIR": str(folder)}
        self._workers = [Supervised(command(name), environ, folder / f"{name}.log", name) for name in names]
        self._stack = ExitStack()

    def __enter__(self) -> Fleet:
        with self._stack:  # undone if one of them does not start
            for worker in self._workers:
                self._stack.enter_context(worker)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            for worker in self._workers:
                worker.ask_to_stop()

    def tend(self) -> list[str]:
        """Start workers again that were killed.

        Returns:
            Their names.

        Raises:
            ProcessEnded: One ended in another way, and would again.
        """
        return [worker.name for worker in self._workers if worker.tend()]


@contextmanager
def open_shop(folder: Path) -> Iterator[tuple[str, Vendor]]:
    """Run a shop in a process of its own, with its ledger and mail log in a folder.

    Yields:
        Its URL, and a client.

    Raises:
        ProcessEnded: It did not start.
    """
    ready = folder / "shop.url"
    files = ["--ledger", str(folder / "shop.db"), "--ready", str(ready)]
    command = [sys.executable, "-m", "agent_tasks.demo.shop", *files]
    with Supervised(command, os.environ, folder / "shop.log", "the shop") as process:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            process.tend()
            if time.monotonic() > deadline:
                raise ProcessEnded(f"the shop did not listen within {_START_SECONDS:g} s; see {folder / 'shop.log'}")
            time.sleep(0.02)
        url = ready.read_text(encoding="utf-8")
        yield url, Vendor(url)
