"""docs/howto-django-payment.md as it stands: its project, step by step, with a real worker that is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from agent_tasks.boundary import Point
from agent_tasks.testing.kills import KILLS_VARIABLE, Crossing, Kill, Kills
from checkpoint import codec
from tests.pages import ROOT, Page
from tests.recovery.fleet import children_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT = 90

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
execute_from_command_line(sys.argv)
"""


ORDER_DECLINED = """
import shop, django
django.setup()
from payments.models import Order
from payments.tasks import pay
Order.objects.create(number="declined", cents=300)
pay.apply_async(("declined",), task_id="declined")
"""


class Bank:
    """Keeps a book of charges, honours keys, declines the cards of some orders, and gives no answer while it is held."""

    def __init__(self) -> None:
        self.book: list[str] = []
        self.declines: set[str] = set()
        self.requests: Counter[str] = Counter()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = bank.charge(body["order"], self.headers["Idempotency-Key"])
                bank.may_answer.wait(LIMIT)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def charge(self, order: str, key: str | None) -> int:
        """Return the status of the answer."""
        with self._lock:
            self.requests[order] += 1
            if order in self.declines:
                return 402
            if key is None or key not in self._keys:
                self.book.append(order)
            if key is not None:
                self._keys.add(key)
            return 201

    @contextmanager
    def open(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self.may_answer.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class ProjectPage(Page):
    """A page whose examples are the files of a project: a file that comes again is replaced, and `, more` is added."""

    def run(self, folder: Path, steps: dict[str, Callable[[], None]]) -> None:  # type: ignore[override]
        """Write the files of each section, and do after it what its step says."""
        for section, blocks in self._sections():
            for text_of_file in blocks:
                name, _, more = text_of_file.splitlines()[0].removeprefix("# ").partition(", ")
                path = folder / name
                path.parent.mkdir(exist_ok=True)
                (path.parent / "__init__.py").touch()
                with path.open("a" if more else "w") as file:
                    file.write(text_of_file)
            if section in steps:
                steps.pop(section)()
        assert steps == {}

    def _sections(self) -> list[tuple[str, list[str]]]:
        lines = self.text.splitlines()
        heads = [(number, line.removeprefix("## ")) for number, line in enumerate(lines, 1) if line.startswith("## ")]
        ends = [*(number for number, _ in heads[1:]), len(lines) + 1]
        return [
            (head, [block.text for block in self.examples if start < block.line < end])
            for (start, head), end in zip(heads, ends, strict=True)
        ]


PAGE = ProjectPage("docs/howto-django-payment.md")


class Shop:
    """The page's project in a folder, with its database, its broker and its worker."""

    def __init__(self, folder: Path, environ: dict[str, str], database: str, bank: Bank) -> None:
        self.folder, self.bank, self._database = folder, bank, database
        self._environ = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
        self._worker: subprocess.Popen[bytes] | None = None
        (folder / "manage.py").write_text(MANAGE)

    def python(self, *arguments: str, **environ: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env={**self._environ, **environ}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def migrate(self) -> None:
        self.python("manage.py", "makemigrations", "payments")
        self.python("manage.py", "migrate")

    def place_order(self, number: str, **environ: str) -> None:
        code = f"import shop, django; django.setup(); from payments.checkout import place_order; place_order({number!r}, 300)"
        self.python("-c", code, DJANGO_SETTINGS_MODULE="shop.settings", **environ)

    def book(self, number: str) -> None:
        """Let a booking be made by a run whose id is that of the order."""
        code = f"import shop, django; django.setup(); from payments.tasks import book; book.apply_async(({number!r},), task_id={number!r})"
        self.python("-c", code, DJANGO_SETTINGS_MODULE="shop.settings")

    def pay(self, number: str) -> None:
        """Call the task for a number, of an order or none; the id of its run is that number."""
        code = f"import shop, django; django.setup(); from payments.tasks import pay; pay.apply_async(({number!r},), task_id={number!r})"
        self.python("-c", code, DJANGO_SETTINGS_MODULE="shop.settings")

    def failure_of(self, run_id: str) -> str | None:
        """Return what a run failed with, or None while it has not."""
        found = self._ask("SELECT error FROM agent_runs WHERE run_id = :n AND status = 'failed'", run_id)
        return codec.loads(found[0])["type"] if found else None

    def has_ended(self, run_id: str) -> bool:
        return self._ask("SELECT status FROM agent_runs WHERE run_id = :n", run_id) == ["succeeded"]

    def bookings(self, number: str) -> int:
        return len(self._ask("SELECT id FROM payments_booking WHERE number = :n", number))

    def _ask(self, statement: str, n: str) -> list[Any]:
        engine = create_engine(self._database)
        with engine.connect() as connection:
            found = list(connection.execute(text(statement), {"n": n}).scalars())
        engine.dispose()
        return found

    def is_paid(self, number: str) -> bool:
        return self._ask("SELECT paid FROM payments_order WHERE number = :n", number) == [True]

    @contextmanager
    def worker(self) -> Iterator[None]:
        self._start()
        try:
            yield
        finally:
            self._stop(signal.SIGTERM)

    def _start(self) -> None:
        with (self.folder / "worker.log").open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "shop",
                "worker",
                "--concurrency",
                "1",
                "--loglevel",
                "INFO",
            ]
            self._worker = subprocess.Popen(
                command, cwd=self.folder, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )

    def _stop(self, how: signal.Signals) -> None:
        assert self._worker is not None
        os.kill(self._worker.pid, how)
        self._worker.wait(LIMIT)

    def kill_child(self) -> None:
        assert self._worker is not None
        for child in children_of(self._worker.pid):
            os.kill(child, signal.SIGKILL)

    def kill_worker(self) -> None:
        self._stop(signal.SIGKILL)
        self._start()

    def pay_with_a_crash(self, number: str, crash: Callable[[], None]) -> None:
        """Place an order, and crash when the bank has the charge and has not answered."""
        self.bank.may_answer.clear()
        self.place_order(number)
        self._until(lambda: self.bank.requests[number] == 1, f"the bank has the charge of {number}")
        crash()
        self._until(lambda: self.bank.requests[number] == 2, f"the bank is asked again for {number}")
        self.bank.may_answer.set()
        self._until(lambda: self.is_paid(number), f"{number} is paid")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, LIMIT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self.folder / 'worker.log').read_text()[-5000:]}") from error

    def charges(self, number: str) -> int:
        return self.bank.book.count(number)


def postgres_environ(url: str) -> dict[str, str]:
    parsed = make_url(url)
    given = {
        "PGDATABASE": parsed.database,
        "PGUSER": parsed.username,
        "PGPASSWORD": parsed.password,
        "PGHOST": parsed.host or parsed.query.get("host"),
        "PGPORT": parsed.port or parsed.query.get("port"),
    }
    return {name: str(value) for name, value in given.items() if value}


def test_the_page_leads_from_paying_twice_to_paying_once(
    postgres_database: Callable[[], str], redis_url: str, tmp_path: Path
) -> None:
    url, bank = postgres_database(), Bank()
    environ = {**postgres_environ(url), "BROKER_URL": redis_url, "BANK_URL": bank.url, "TMPDIR": str(tmp_path)}
    kills = Kills(tmp_path / "kills")
    environ[KILLS_VARIABLE] = str(kills.folder)
    shop = Shop(tmp_path, environ, url, bank)

    def plain() -> None:
        shop.migrate()
        with shop.worker():
            shop.pay_with_a_crash("o-1", shop.kill_child)
        assert shop.charges("o-1") == 2

    def observe() -> None:
        with (tmp_path / "shop" / "settings.py").open("a") as settings:  # for a test that does not wait for long
            settings.write("CELERY_AGENT_LEASE_SECONDS = 3\nCELERY_AGENT_SWEEP_SECONDS = 0.5\n")
        shop.migrate()
        shop.python("manage.py", "migrate", "--check")
        with shop.worker():
            shop.pay_with_a_crash("o-2", shop.kill_child)
        assert shop.charges("o-2") == 2
        said = shop.python("-m", "celery", "-A", "shop", "agent", "observed", "--json")
        (task,) = json.loads(said)["tasks"]
        again = {"doubled": 1, "retried": 0, "after_success": 0, "after_loss": 1}
        assert task == {"task": "payments.tasks.pay", "calls": 1, "starts": 2, **again, "unended": 0}

    def guard() -> None:
        with shop.worker():
            shop.pay_with_a_crash("o-3", shop.kill_child)
            bank.declines.add("declined")
            shop.pay("no-order")
            wait_until(lambda: shop.failure_of("no-order") is not None, "a task without an order has failed", LIMIT)
            shop.python("-c", ORDER_DECLINED, DJANGO_SETTINGS_MODULE="shop.settings")
            wait_until(lambda: shop.failure_of("declined") is not None, "a declined payment has failed", LIMIT)
        assert shop.charges("o-3") == 1
        assert (bank.requests["declined"], bank.requests["no-order"]) == (1, 0)
        assert str(shop.failure_of("declined")).endswith("Declined")
        assert str(shop.failure_of("no-order")).endswith("DoesNotExist")

    def kill() -> None:
        with shop.worker():
            shop.pay_with_a_crash("o-4", shop.kill_worker)
            shop.place_order("o-5", BROKER_URL="redis://127.0.0.1:1/0")  # committed, and nobody hears the doorbell
            wait_until(lambda: shop.is_paid("o-5"), "an order whose doorbell was lost is paid", LIMIT)
        assert (shop.charges("o-4"), shop.charges("o-5")) == (1, 1)

    def kill_in_a_transaction() -> None:
        with (tmp_path / "shop" / "celery.py").open("a") as module:
            module.write("from agent_tasks.testing.kills import Kills\nKills.install()\n")
        shop.migrate()
        points = [
            Point("effect", "payments.tasks.book", "after"),
            Point("commit", "effect and outcome", "before"),
            Point("commit", "effect and outcome", "after"),
        ]
        numbers = {f"b-{number}": point for number, point in enumerate(points)}
        kills.plan([Kill("child", Crossing(1, point), number) for number, point in numbers.items()])
        with shop.worker():
            for number in numbers:
                shop.book(number)
            wait_until(lambda: all(map(shop.has_ended, numbers)), "all is booked", LIMIT)
        assert len(kills.carried_out()) == len(points)
        assert {number: shop.bookings(number) for number in numbers} == dict.fromkeys(numbers, 1)

    with bank.open():
        PAGE.run(
            tmp_path,
            {
                "The shop as it stands": plain,
                "1. Look first": observe,
                "2. Guard the effect": guard,
                "4. Kill a worker": kill,
                "5. A task that only writes to the shop's database": kill_in_a_transaction,
            },
        )
