"""Plain tasks that a real worker runs, and the outside world that they act on: a folder. Configured by the environment.

AGENT_BROKER_URL=… AGENT_DATABASE_URL=… AGENT_RESULT_BACKEND=… celery -A tests.recovery.plain_worker worker
"""

from __future__ import annotations

import os
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from agent_tasks import Agent, AgentTask, Happened, NotHappened, OutsideRun, done, tool

FOLDER_VARIABLE = "AGENT_PLAIN_FOLDER"

#: Queues that the worker listens to, beside the default.
OTHER_QUEUE = "elsewhere"


class Outside:
    """What happened, and what is held up: files that outlive every process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("happened", "gates", "seen"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def act(self, reference: str, word: str) -> str:
        """Let something happen; a known reference makes nothing happen again."""
        with suppress(FileExistsError), (self.folder / "happened" / reference).open("x") as effect:
            effect.write(word)
        return word

    def happened(self, word: str) -> int:
        """How often something happened."""
        return sum(path.read_text() == word for path in (self.folder / "happened").iterdir())

    def see(self, word: str, what: object = "") -> int:
        """Note that a body began or a hook was called; return how often it was before."""
        before = len(self.seen(word))
        with (self.folder / "seen" / word).open("a") as seen:
            seen.write(f"{what}\n")
        return before

    def seen(self, word: str) -> list[str]:
        """What was noted, in order."""
        path = self.folder / "seen" / word
        return path.read_text().splitlines() if path.exists() else []

    def gate(self, word: str) -> Path:
        """The file that holds a body up for as long as it is there."""
        return self.folder / "gates" / word

    def wait(self, word: str) -> None:
        while self.gate(word).exists():
            time.sleep(0.01)


def build(environ: dict[str, str]) -> tuple[Celery, dict[str, Task]]:
    """Make the app and its tasks with the project's own settings under this environment."""
    with patch.dict(os.environ, environ):
        settings = runpy.run_path(str(Path(__file__).resolve().parents[2] / "celeryconfig.py"))
    app = Celery("plain", set_as_current=False)
    app.conf.update({name: value for name, value in settings.items() if name.islower() and name[0] != "_"})
    app.conf.update(task_routes={"shop.routed": {"queue": OTHER_QUEUE}}, result_chord_join_timeout=20)
    outside = Outside(Path(environ[FOLDER_VARIABLE]))
    safe: dict[str, Any] = {"base": AgentTask, "bind": True, "shared": False}
    keyed: dict[str, Any] = {"effect": "keyed", "key_lifetime": timedelta(hours=1)}

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=True)
    def charge(operation, word):
        return outside.act(operation.idempotency_key, word)

    @app.task(name="shop.pay", dedupe_on=("order",), **safe, **keyed)
    def pay(self, order, cents=300):
        outside.see(order, os.getpid())
        outside.act(self.operation.idempotency_key, order)
        outside.wait(order)
        return {"order": order, "cents": cents}

    @app.task(name="shop.add", tools=[], **safe)
    def add(self, x, y, word="add"):
        outside.see(word, self.request.id)
        return x + y

    @app.task(name="shop.routed", tools=[], **safe)
    def routed(self):
        return self.request.delivery_info["routing_key"]

    @app.task(name="shop.flaky", max_retries=3, **safe, **keyed)
    def flaky(self, word, failures):
        outside.see(word, self.request.retries)
        outside.act(self.operation.idempotency_key, word)
        if self.request.retries < failures:
            raise self.retry(exc=ConnectionError("reset"), countdown=0.1)
        return self.request.retries

    @app.task(
        name="shop.unlucky",
        autoretry_for=(ConnectionError,),
        max_retries=2,
        default_retry_delay=0.1,
        tools=[charge],
        **safe,
    )
    def unlucky(self, word, failures):
        charge(word)
        if outside.see(word) < failures:
            raise ConnectionError(word)
        return word

    @app.task(name="shop.fails", tools=[], throws=(KeyError,), **safe)
    def fails(self, word):
        outside.see(word)
        raise KeyError(word)

    @app.task(name="shop.hangs", time_limit=2, **safe, **keyed)
    def hangs(self, word):
        outside.act(self.operation.idempotency_key, word)
        if not outside.see(word):
            time.sleep(60)
        return word

    @app.task(name="shop.softly", soft_time_limit=1, tools=[charge], **safe)
    def softly(self, word):
        charge(word)
        time.sleep(60)

    @app.task(name="shop.softly_keyed", soft_time_limit=1, **safe, **keyed)
    def softly_keyed(self, word):
        outside.act(self.operation.idempotency_key, word)
        if not outside.see(word):
            time.sleep(60)
        return word

    @app.task(name="shop.probed", effect="probed", timeout=timedelta(seconds=3), **safe)
    def probed(self, word):
        outside.see(word, os.getpid())
        outside.act(self.operation.operation_id, word)
        outside.wait(word)
        return word

    @probed.probe
    def look(operation):
        found = outside.folder / "happened" / operation.operation_id
        return Happened(found.read_text()) if found.exists() else NotHappened()

    class Hooked(AgentTask):
        def on_success(self, retval, task_id, args, kwargs):
            outside.see(f"hooks-{kwargs['word']}", ["success", retval, args])

        def on_failure(self, exc, task_id, args, kwargs, einfo):
            outside.see(f"hooks-{kwargs['word']}", ["failure", str(exc), args])

        def after_return(self, status, retval, task_id, args, kwargs, einfo):
            outside.see(f"hooks-{kwargs['word']}", [status, args])

    class InContext(AgentTask):
        """As the documentation of Flask has it."""

        def __call__(self, *args, **kwargs):
            outside.see(f"around-{args[0]}", args)
            return self.run(*args, **kwargs)

        def before_start(self, task_id, args, kwargs):
            outside.see(f"before-{args[0]}", args)
            if args[0].startswith("closed"):
                raise PermissionError(args[0])

    @app.task(name="shop.in_context", **{**safe, "base": InContext}, **keyed)
    def in_context(self, word):
        return outside.act(self.operation.idempotency_key, word)

    @app.task(name="shop.waved_away", tools=[], throws=(Ignore, Reject), **safe)
    def waved_away(self, word, how):
        outside.see(word)
        raise Ignore(word) if how == "ignore" else Reject(word, requeue=True)

    @app.task(name="shop.hooked", tools=[], **{**safe, "base": Hooked})
    def hooked(self, x, word):
        if x < 0:
            raise ValueError(x)
        return x

    @app.task(name="shop.asks", tools=[], **safe)
    def asks(self, what, word="asks"):
        return {
            "args": self.request.args,
            "kwargs": self.request.kwargs,
            "id": self.request.id,
            "more": self.request.headers,
        }

    notes = Agent("notes", app=app)
    notes.step(lambda state: outside.see(state["word"]) or done(), name="note")
    inside: dict[str, Any] = {
        "apply": lambda word: pay.apply((word,)).get(disable_sync_subtasks=False),
        "apply, of tools": lambda word: unlucky.apply((word, 0)).get(disable_sync_subtasks=False),
        "apply, without effects": lambda word: add.apply((1, 2, word)).get(disable_sync_subtasks=False),
        "run_inline": lambda word: notes.run_inline({"word": word}),
    }

    @app.task(name="shop.inside", tools=[], throws=(OutsideRun,), **safe)
    def inside_a_body(self, how, word):
        return inside[how](word)

    @app.task(name="plain.inside", throws=(OutsideRun,), shared=False)
    def inside_another_task(how, word):
        return inside[how](word)

    @app.task(name="plain.inside_a_thread", throws=(OutsideRun,), shared=False)
    def inside_a_thread(how, word):
        with ThreadPoolExecutor() as threads:
            return threads.submit(inside[how], word).result()

    @app.task(name="plain.total", shared=False)
    def total(numbers):
        return sum(numbers)

    @app.task(name="plain.remember", bind=True, shared=False)
    def remember(self, what, word):
        outside.see(word, f"{self.request.id} {what}")
        return what

    return app, {name.rpartition(".")[2]: task for name, task in app.tasks.items() if not name.startswith("celery.")}
