"""What each of Celery's features does on a plain task, on real workers: every row of the table in docs/plain-tasks.md."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import celery
import pytest
from celery import chain, chord, group
from celery.beat import ScheduleEntry, Scheduler
from celery.contrib.django.task import DjangoTask
from celery.exceptions import TaskRevokedError
from celery.schedules import schedule
from sqlalchemy import RowMapping

from agent_tasks import AgentTask, AgentTasksError, DedupeConflict, OutsideRun, RunFailed
from agent_tasks.boundary import Point
from agent_tasks.integration import AppState
from agent_tasks.integrations.django.task import AgentTask as DjangosAgentTask
from agent_tasks.migrate import upgrade
from agent_tasks.states import FINISHED, OperationStatus, RunStatus
from agent_tasks.testing import check_invariants
from agent_tasks.testing.kills import KILLS_VARIABLE, Crossing, Kill, Kills
from tests import services
from tests.apps import close
from tests.recovery.fleet import Fleet
from tests.recovery.plain_app import FOLDER_VARIABLE, OTHER_QUEUE, Outside, build
from tests.recovery.stage import SHORT
from tests.waiting import wait_until

pytestmark = [pytest.mark.recovery, pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "plain-tasks.md"

#: The rows of the page's table that have a test here.
ROWS: set[str] = set()

#: How long a result may take on a busy machine, in seconds.
LIMIT = 60

_words = itertools.count(1)


def row(*features: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Say which rows of the table a test shows."""
    ROWS.update(features)
    return lambda test: test


class Place:
    """A worker, and this process as its caller."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.environ, self.log = environ, folder / "logs" / "w0.log"
        self.outside, self.kills = Outside(folder), Kills(environ[KILLS_VARIABLE])
        self.app, self.tasks = build(environ)
        self.runtime = AppState.of(self.app).runtime
        upgrade(self.runtime.engine)

    def __getattr__(self, task: str) -> Any:
        return self.tasks[task]

    def row(self, run_id: str) -> RowMapping:
        with self.runtime.engine.connect() as connection:
            found = self.runtime.runs.find(connection, run_id)
        assert found is not None
        return found

    def rests(self, run_id: str) -> bool:
        """Tell whether a run has ended, and nobody rings for its result any more."""
        found = self.row(run_id)
        return found["status"] in FINISHED and found["due_at"] is None

    def waits(self, run_id: str) -> bool:
        return bool(self.row(run_id)["status"] == RunStatus.WAITING)

    def unrung(self) -> Any:
        """Let nothing that is called here reach the broker."""
        return patch.object(self.runtime.bell, "ring", lambda _: None)

    def empties(self, queue: str) -> None:
        """Wait until the worker has every message of a queue."""
        wait_until(lambda: self.runtime.bell.depth(queue) == 0, "the worker has every message", LIMIT)

    def empty_the_broker(self) -> None:
        with self.app.connection_for_write() as connection:
            connection.default_channel.client.flushdb()


@pytest.fixture(scope="module")
def place(postgres_server: str, redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One worker for all rows, with PostgreSQL, a broker on Valkey and results on Valkey."""
    folder = tmp_path_factory.mktemp("plain")
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(services.databases(postgres_server))()
        broker, results = (stack.enter_context(services.redis_database(redis_server)) for _ in range(2))
        environ = {
            "AGENT_DATABASE_URL": database,
            "AGENT_BROKER_URL": broker,
            "AGENT_RESULT_BACKEND": results,
            "AGENT_DATA_DIR": str(folder / "data"),
            "TMPDIR": str(folder),
            KILLS_VARIABLE: str(folder / "kills"),
            FOLDER_VARIABLE: str(folder),
            **SHORT,
        }
        made = Place(folder, environ)
        with Fleet([environ], folder / "logs", concurrency=3, app="tests.recovery.plain_worker"):
            wait_until(lambda: made.app.control.ping(timeout=1, limit=1), "the worker listens", LIMIT)
            yield made
            with made.runtime.engine.connect() as connection:
                assert check_invariants(connection) == []
        made.runtime.engine.dispose()
        close(made.app)


@pytest.fixture
def word() -> str:
    """A word of this test's own."""
    return f"word-{next(_words)}"


# -- results --------------------------------------------------------------------------------------------------------------


@row("`.delay()`, `.apply_async()`, `.get()`")
def test_a_result_is_what_the_run_ended_with(place: Place, word: str) -> None:
    called = place.pay.delay(word, cents=5)
    assert called.get(timeout=LIMIT) == {"order": word, "cents": 5}
    assert called.state == "SUCCESS"
    assert place.row(called.id)["task"] == "shop.pay"
    wait_until(lambda: place.rests(called.id), "nobody rings for a stored result", LIMIT)


@row("`throws`, and which class a failure has")
def test_a_failure_has_the_same_class_every_time(place: Place, word: str) -> None:
    for _ in range(2):
        called = place.fails.apply_async((word,), task_id=f"fails-{word}")
        with pytest.raises(KeyError, match=word):
            called.get(timeout=LIMIT)
    wait_until(lambda: place.rests(called.id), "nobody rings for a stored failure", LIMIT)


@row("`ignore_result`")
def test_an_ignored_result_is_none_and_keeps_nobody_busy(place: Place, word: str) -> None:
    called = place.add.apply_async((1, 2, word), ignore_result=True)
    assert called.get(timeout=LIMIT) is None
    wait_until(lambda: place.rests(called.id), "the run ended", LIMIT)
    assert place.app.AsyncResult(called.id).state == "PENDING"


@row("`on_success`, `on_failure`, `after_return`")
def test_hooks_see_the_real_arguments_and_need_no_super(place: Place, word: str) -> None:
    good = place.hooked.apply_async((1,), {"word": f"good-{word}"})
    bad = place.hooked.apply_async((-1,), {"word": f"bad-{word}"})
    assert good.get(timeout=LIMIT) == 1
    with pytest.raises(ValueError, match="-1"):
        bad.get(timeout=LIMIT)
    wait_until(lambda: place.rests(good.id) and place.rests(bad.id), "both results are known to be stored", LIMIT)
    seen = wait_until(lambda: (s := place.outside.seen(f"hooks-good-{word}")) and s[1:] and s, "hooks", LIMIT)
    assert seen == ["['success', 1, [1]]", "['SUCCESS', [1]]"]
    seen = wait_until(lambda: (s := place.outside.seen(f"hooks-bad-{word}")) and s[1:] and s, "hooks", LIMIT)
    assert seen == ["['failure', '-1', [-1]]", "['FAILURE', [-1]]"]


@row("a base class with a `__call__` or a `before_start` of its own")
def test_what_a_base_class_does_around_the_body_is_done_once_with_the_real_arguments(place: Place, word: str) -> None:
    assert place.in_context.delay(word).get(timeout=LIMIT) == word
    assert place.outside.happened(word) == 1
    assert place.outside.seen(f"around-{word}") == [f"('{word}',)"]
    assert place.outside.seen(f"before-{word}") == [f"['{word}']"]


@row("a base class with a `__call__` or a `before_start` of its own")
def test_what_a_hook_raises_before_the_body_is_the_end_of_the_run(place: Place, word: str) -> None:
    closed = place.in_context.delay(f"closed-{word}")
    with pytest.raises(PermissionError, match=word):
        closed.get(timeout=LIMIT)
    wait_until(lambda: place.rests(closed.id), "nobody rings for a stored failure", LIMIT)
    assert place.row(closed.id)["status"] == RunStatus.FAILED
    assert place.outside.happened(f"closed-{word}") == 0


@row("`raise Ignore`, `raise Reject`")
@pytest.mark.parametrize("how", ["ignore", "reject"])
def test_a_body_that_waves_its_message_away_fails(place: Place, word: str, how: str) -> None:
    called = place.waved_away.delay(word, how)
    with pytest.raises(RunFailed, match=rf"failed: celery\.exceptions\.{how.title()}: .*{word}"):
        called.get(timeout=LIMIT)
    wait_until(lambda: place.rests(called.id), "nobody rings for a stored failure", LIMIT)
    assert len(place.outside.seen(word)) == 1


@row("`dedupe_on`, `task_id`")
def test_the_same_job_is_done_once(place: Place, word: str) -> None:
    first = place.pay.delay(word, 7)
    assert place.pay.apply_async(kwargs={"cents": 7, "order": word}).id == first.id
    assert place.pay.apply_async((word, 7), task_id=first.id).id == first.id
    assert first.get(timeout=LIMIT)["order"] == word
    assert place.pay.delay(word, 7).get(timeout=LIMIT)["order"] == word
    with pytest.raises(DedupeConflict, match="started with another input"):
        place.pay.delay(word, 8)
    assert place.outside.happened(word) == 1
    assert len(place.outside.seen(word)) == 1


# -- retries --------------------------------------------------------------------------------------------------------------


@row("`self.retry(…)`")
def test_a_retry_waits_in_the_ledger_and_uses_the_same_key(place: Place, word: str) -> None:
    called = place.flaky.delay(word, 2)
    assert called.get(timeout=LIMIT) == 2
    assert place.outside.seen(word) == ["0", "1", "2"]
    assert place.outside.happened(word) == 1
    assert place.row(called.id)["retries"] == 2


@row("`autoretry_for`, `retry_backoff`, `max_retries`")
def test_automatic_retries_end_as_celerys_do(place: Place, word: str) -> None:
    assert place.unlucky.delay(word, 2).get(timeout=LIMIT) == word
    assert place.outside.happened(word) == 1
    with pytest.raises(ConnectionError, match=f"never-{word}"):
        place.unlucky.delay(f"never-{word}", 99).get(timeout=LIMIT)
    assert len(place.outside.seen(f"never-{word}")) == 3
    assert place.outside.happened(f"never-{word}") == 1


# -- time -----------------------------------------------------------------------------------------------------------------


@row("`countdown`, `eta`")
def test_a_later_start_is_a_row(place: Place, word: str) -> None:
    far = place.add.apply_async((1, 2, word), eta=place.app.now() + timedelta(days=1))
    near = place.add.apply_async((1, 2), countdown=0.5)
    assert place.waits(far.id)
    assert near.get(timeout=LIMIT) == 3
    assert place.waits(far.id)
    assert place.outside.seen(word) == []


@row("`expires`")
def test_a_call_that_nobody_began_in_time_is_revoked_as_expired(place: Place, word: str) -> None:
    late = place.add.apply_async((1, 2, word), countdown=0.2, expires=0.1)
    with pytest.raises(TaskRevokedError, match="expired"):
        late.get(timeout=LIMIT)
    assert late.state == "REVOKED"
    assert place.row(late.id)["status"] == RunStatus.CANCELLED
    assert place.add.apply_async((1, 2), expires=3600).get(timeout=LIMIT) == 3
    assert place.outside.seen(word) == []
    wait_until(lambda: place.rests(late.id), "nobody rings for it", LIMIT)


@row("`soft_time_limit`")
def test_a_soft_limit_is_an_exception_in_the_body(place: Place, word: str) -> None:
    with pytest.raises(celery.exceptions.SoftTimeLimitExceeded):
        place.softly.delay(word).get(timeout=LIMIT)
    assert place.outside.happened(word) == 1
    assert place.softly_keyed.delay(f"keyed-{word}").get(timeout=LIMIT) == f"keyed-{word}"
    assert place.outside.happened(f"keyed-{word}") == 1


@row("`time_limit`")
def test_a_hard_limit_kills_the_process_and_not_the_run(place: Place, word: str) -> None:
    called = place.hangs.delay(word)
    assert called.get(timeout=LIMIT) == word
    assert place.outside.happened(word) == 1
    assert len(place.outside.seen(word)) == 2


@row("`rate_limit`")
def test_a_rate_limit_holds_doorbells_back(place: Place, word: str) -> None:
    place.app.control.rate_limit("shop.asks", "1/h", reply=True, timeout=LIMIT, limit=1)
    try:
        first = place.asks.delay(1)
        first.get(timeout=LIMIT)
        second = place.asks.delay(2)
        place.add.delay(1, 2).get(timeout=LIMIT)
        assert second.state == "PENDING"
    finally:
        place.app.control.rate_limit("shop.asks", None, reply=True, timeout=LIMIT, limit=1)
    third = place.asks.delay(3)
    assert third.get(timeout=LIMIT)["args"] == [3]
    assert second.get(timeout=LIMIT)["args"] == [2]


# -- canvas ---------------------------------------------------------------------------------------------------------------


@row("`link`")
def test_callbacks_are_called_when_the_run_has_ended(place: Place, word: str) -> None:
    mine, others = place.add.s(10, word=f"mine-{word}"), place.remember.s(f"others-{word}")
    called = place.add.apply_async((1, 2), link=[mine, others])
    assert called.get(timeout=LIMIT) == 3
    seen = wait_until(lambda: place.outside.seen(f"mine-{word}"), "the safe callback ran", LIMIT)
    assert wait_until(lambda: place.outside.seen(f"others-{word}"), "the other ran", LIMIT)[0].endswith(" 3")
    assert place.app.AsyncResult(seen[0]).get(timeout=LIMIT) == 13


@row("`link_error`")
def test_error_callbacks_are_called_when_the_run_has_failed(place: Place, word: str) -> None:
    called = place.fails.apply_async((word,), link_error=place.remember.s(f"error-{word}"))
    with pytest.raises(KeyError):
        called.get(timeout=LIMIT)
    assert wait_until(lambda: place.outside.seen(f"error-{word}"), "the error callback ran", LIMIT)


@row("chain")
def test_a_chain_goes_on_with_safe_and_other_tasks(place: Place, word: str) -> None:
    chained = chain(place.add.s(1, 2), place.add.s(3, word=word), place.remember.s(word), app=place.app)
    assert chained.apply_async().get(timeout=LIMIT) == 6
    failing = chain(place.fails.s(word), place.remember.s(f"never-{word}"), app=place.app).apply_async()
    with pytest.raises(KeyError):
        failing.get(timeout=LIMIT)
    assert place.outside.seen(f"never-{word}") == []


@row("group")
def test_a_group_is_a_run_each(place: Place, word: str) -> None:
    results = group([place.add.s(n, n) for n in range(3)], app=place.app).apply_async()
    assert results.get(timeout=LIMIT) == [0, 2, 4]
    assert [place.row(result.id)["status"] for result in results] == [RunStatus.SUCCEEDED] * 3


@row("chord")
def test_a_chords_body_is_called_once_with_all_results(place: Place, word: str) -> None:
    header = [place.add.s(n, n) for n in range(3)]
    assert chord(header, app=place.app)(place.total.s()).get(timeout=LIMIT) == 6
    safe_body = place.asks.s(word=word)
    assert chord(header, app=place.app)(safe_body).get(timeout=LIMIT)["args"] == [[0, 2, 4]]


@row("`.map`, `.starmap`, `.chunks`")
def test_mapping_calls_the_body_as_a_function_and_is_refused_for_effects(place: Place, word: str) -> None:
    with pytest.raises(OutsideRun, match="called as a function"):
        place.pay.map([word]).apply_async().get(timeout=LIMIT)
    assert place.outside.happened(word) == 0


# -- who calls ------------------------------------------------------------------------------------------------------------


@row("`app.send_task(name)`")
def test_a_message_by_name_becomes_a_run_when_it_is_received(place: Place, word: str) -> None:
    elsewhere = celery.Celery("elsewhere", broker=place.app.conf.broker_url, backend=place.app.conf.result_backend)
    queue = place.app.conf.task_default_queue
    sent = elsewhere.send_task("shop.pay", (word,), queue=queue, link=place.remember.s(f"sent-{word}"))
    assert sent.get(timeout=LIMIT)["order"] == word
    assert place.row(sent.id)["status"] == RunStatus.SUCCEEDED
    assert wait_until(lambda: place.outside.seen(f"sent-{word}"), "its callback ran", LIMIT)
    again = elsewhere.send_task("shop.pay", (word,), queue=queue)
    assert again.get(timeout=LIMIT)["order"] == word
    assert place.outside.happened(word) == 1
    with pytest.raises(TypeError, match="missing a required argument"):
        elsewhere.send_task("shop.pay", (), queue=queue).get(timeout=LIMIT)
    close(elsewhere)


@row("`app.send_task(name)`")
def test_a_message_under_a_taken_id_does_not_touch_the_first_callers_result(place: Place, word: str) -> None:
    place.outside.gate(word).touch()
    called = place.pay.delay(word)
    wait_until(lambda: place.outside.happened(word), "the run is under way", LIMIT)
    place.app.send_task("shop.pay", (f"not-{word}",), task_id=called.id)
    said = f"its id is that of run {called.id}, "
    wait_until(lambda: said in place.log.read_text(), "the message was rejected, and that was logged", LIMIT)
    place.app.send_task("shop.add", (1, 2), task_id=f"after-{word}").get(timeout=LIMIT)
    assert called.state == "PENDING"
    place.outside.gate(word).unlink()
    assert called.get(timeout=LIMIT)["order"] == word
    assert place.outside.happened(f"not-{word}") == 0


@row("`app.send_task(name)`")
@pytest.mark.parametrize(
    "sent",
    [{"task_id": "a\0b"}, {"task_id": "x" * 300}, {"link": [{"task": None}]}, {"queue": "q" * 201}],
    ids=["NUL in the id", "long id", "broken link", "long queue"],
)
def test_a_message_that_can_never_become_a_run_is_done_with_at_once(
    place: Place, word: str, sent: dict[str, Any]
) -> None:
    if "queue" in sent:
        place.app.control.add_consumer(sent["queue"], reply=True, timeout=LIMIT, limit=1)
    place.app.send_task("shop.pay", (word,), **{"task_id": f"never-{word}", **sent})
    place.empties(sent.get("queue", place.app.conf.task_default_queue))
    place.add.apply_async((1, 2), task_id=f"after-{word}").get(timeout=LIMIT)
    if "task_id" not in sent:
        with pytest.raises(AgentTasksError):
            place.app.AsyncResult(f"never-{word}").get(timeout=LIMIT)
    else:
        wait_until(lambda: "its id cannot be that of a run" in place.log.read_text(), "the rejection is logged", LIMIT)
    assert place.outside.seen(word) == []
    assert "was not answered; it comes again" not in place.log.read_text()


@row("`app.send_task(name)`")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_is_killed_while_it_rejects_a_message_under_a_taken_id_leaves_that_ones_result_alone(
    place: Place, word: str, moment: str
) -> None:
    called = place.pay.delay(word)
    assert called.get(timeout=LIMIT)["order"] == word
    wait_until(lambda: place.rests(called.id), "the run rests, and its doorbell is acked", LIMIT)
    kill, before = Kill("worker", Crossing(0, Point("ack", "reject", moment))), len(place.kills.carried_out())
    place.kills.plan([kill])
    place.app.send_task("shop.pay", (f"not-{word}",), task_id=called.id)
    wait_until(lambda: len(place.kills.carried_out()) > before, "the worker was killed", LIMIT)
    place.add.apply_async((1, 2), task_id=f"after-{word}").get(timeout=LIMIT)
    place.app.send_task("shop.pay", (f"not-{word}",), task_id=called.id)  # as a broker that gives it out again does
    said = f"its id is that of run {called.id}, "
    wait_until(lambda: place.log.read_text().count(said) >= 2, "both were rejected", LIMIT)
    assert (called.state, called.get(timeout=LIMIT)["order"]) == ("SUCCESS", word)
    assert (place.outside.happened(word), place.outside.happened(f"not-{word}")) == (1, 0)


@row("`app.send_task(name)`")
def test_messages_that_nobody_can_read_end_no_worker(place: Place, word: str) -> None:
    (worker,) = place.app.control.ping(timeout=LIMIT, limit=1)
    before = place.log.read_text().count("ready.")
    call = [[1, 2, word], {}, {}]
    bodies = [(body, {}) for body in (None, 5, "abc", [1], [], [5, {}, {}])]
    headers = [{"timelimit": ["a", "b"]}, {"timelimit": 5}, {"stamped_headers": 5}, {"id": [1]}, {"eta": 5}]
    for number, (body, said) in enumerate([*bodies, *((call, said) for said in headers)]):
        with place.app.producer_pool.acquire(block=True) as producer:
            sent = place.app.amqp.as_task_v2(f"{word}-{number}", "shop.add", (), {}).headers
            producer.publish(body, headers={**sent, **said}, routing_key=place.app.conf.task_default_queue)
    place.empties(place.app.conf.task_default_queue)
    place.add.apply_async((1, 2), task_id=f"after-{word}").get(timeout=LIMIT)
    wait_until(lambda: len(place.outside.seen(word)) == 3, "the calls with headers of no use were made", LIMIT)
    assert place.log.read_text().count("ready.") == before
    assert place.app.control.ping(timeout=LIMIT, limit=1)[0].keys() == worker.keys()


@row("beat")
def test_beat_makes_a_run_for_each_entry_that_is_due(place: Place, word: str) -> None:
    entry = ScheduleEntry("pay", "shop.pay", args=(word,), schedule=schedule(1), app=place.app)
    assert Scheduler(place.app, lazy=True).apply_async(entry).get(timeout=LIMIT)["order"] == word


@row("`task_always_eager`, `.apply()`")
def test_eager_calls_run_on_a_ledger_of_their_own_and_wait_for_nothing(place: Place, word: str) -> None:
    assert place.flaky.apply((word, 1)).get() == 1
    place.app.conf.task_always_eager = True
    try:
        assert place.pay.delay(word).get()["order"] == word
    finally:
        place.app.conf.task_always_eager = False
    with place.runtime.engine.connect() as connection:
        assert place.runtime.runs.find_by_dedupe_key(connection, "shop.pay", f"order={word!r}") is None


@row("`task_always_eager`, `.apply()`")
@pytest.mark.parametrize("where", ["shop.inside", "plain.inside", "plain.inside_a_thread"])
@pytest.mark.parametrize("how", ["apply", "apply, of tools", "run_inline"])
def test_nothing_with_an_effect_is_done_on_a_ledger_of_its_own_in_a_worker(
    place: Place, word: str, where: str, how: str
) -> None:
    with pytest.raises(OutsideRun, match=r"in a worker, on a ledger of its own: when the process dies, .* done again"):
        place.app.tasks[where].delay(how, word).get(timeout=LIMIT)
    assert (place.outside.happened(word), place.outside.seen(word)) == (0, [])


@row("`task_always_eager`, `.apply()`")
def test_a_task_without_effects_may_be_applied_in_a_worker(place: Place, word: str) -> None:
    assert place.app.tasks["plain.inside"].delay("apply, without effects", word).get(timeout=LIMIT) == 3


@row("`queue`, `task_routes`, `priority`")
def test_doorbells_go_where_the_call_is_routed(place: Place, word: str) -> None:
    # Here and not at the worker's start, since other tests kill it, and the one that follows it does not know the queue.
    place.app.control.add_consumer(OTHER_QUEUE, reply=True, timeout=LIMIT, limit=1)
    assert place.routed.delay().get(timeout=LIMIT) == OTHER_QUEUE
    with place.unrung():
        urgent = place.add.apply_async((1, 2), queue=OTHER_QUEUE, priority=9)
    assert (place.row(urgent.id)["queue"], place.row(urgent.id)["priority"]) == (OTHER_QUEUE, 9)
    assert urgent.get(timeout=LIMIT) == 3
    with pytest.raises(AgentTasksError, match="exchange=, which cannot be honoured"):
        place.add.apply_async((1, 2), exchange="somewhere")


@row("`headers`, `self.request`")
def test_the_request_is_the_runs(place: Place, word: str) -> None:
    asked = place.asks.apply_async((1,), {"word": word}, headers={"x_tenant": "t-1"})
    found = asked.get(timeout=LIMIT)
    assert (found["args"], found["kwargs"], found["id"]) == ([1], {"word": word}, asked.id)
    assert found["more"]["x_tenant"] == "t-1"


@row("`headers`, `self.request`")
def test_headers_that_a_body_sees_may_be_passed_on(place: Place, word: str) -> None:
    seen = place.asks.apply_async((1,), headers={"x_trace": word}).get(timeout=LIMIT)["more"]
    assert place.asks.apply_async((1,), headers=seen).get(timeout=LIMIT)["more"]["x_trace"] == word
    sent = place.app.send_task("shop.asks", (1,), headers={**seen, "agent_ring": 1})  # as of an older release
    assert sent.get(timeout=LIMIT)["more"] == seen


@row("`app.send_task(name)`")
@pytest.mark.parametrize(
    ("headers", "embedded"), [({"agent_answered": 1}, {}), ({}, {"is_eager": True}), ({}, {"called_directly": True})]
)
def test_a_message_under_a_taken_id_cannot_say_how_far_that_call_is(
    place: Place, word: str, headers: dict[str, Any], embedded: dict[str, Any]
) -> None:
    called = place.pay.delay(word)
    assert called.get(timeout=LIMIT)["order"] == word
    made = place.app.amqp.as_task_v2(called.id, "shop.pay", (word,), {})
    args, kwargs, said = made.body
    with place.app.connection_for_write() as connection:
        connection.Producer().publish(
            (args, kwargs, {**said, **embedded}),
            routing_key=place.app.conf.task_default_queue,
            serializer="json",
            headers={**made.headers, **headers},
            correlation_id=called.id,
        )
    place.empties(place.app.conf.task_default_queue)
    place.add.apply_async((1, 2), task_id=f"after-{word}").get(timeout=LIMIT)
    assert place.app.AsyncResult(called.id).get(timeout=LIMIT)["order"] == word
    assert len(place.outside.seen(word)) == 1


@row("`acks_late`, `reject_on_worker_lost`, `acks_on_failure_or_timeout`")
def test_the_settings_of_acks_are_the_tasks_own(place: Place) -> None:
    assert place.app.conf.task_acks_late is False or place.pay.acks_late
    assert (place.pay.acks_late, place.pay.reject_on_worker_lost, place.pay.acks_on_failure) == (True, True, True)
    assert place.remember.reject_on_worker_lost is place.app.conf.task_reject_on_worker_lost


@row("`self.replace`")
def test_a_run_is_not_replaced(place: Place) -> None:
    with pytest.raises(AgentTasksError, match="cannot replace itself"):
        place.pay.replace(place.add.s(1, 2))


@row("Django's `delay_on_commit`, `apply_async_on_commit`")
def test_djangos_shortcuts_are_those_of_its_own_base_class() -> None:
    """What they do is in tests/integration/test_django_tasks.py."""
    assert not hasattr(AgentTask, "delay_on_commit")
    assert issubclass(DjangosAgentTask, AgentTask)
    assert DjangosAgentTask.delay_on_commit is not DjangoTask.delay_on_commit


# -- ending it ------------------------------------------------------------------------------------------------------------


@row("`revoke(id)`")
def test_a_revoked_call_that_nobody_began_ends_as_revoked(place: Place, word: str) -> None:
    with place.unrung():
        called = place.pay.delay(word)
    place.app.control.revoke(called.id, reply=True, timeout=LIMIT, limit=1)
    with pytest.raises(TaskRevokedError, match="revoked"):
        called.get(timeout=LIMIT)  # Celery's command says so by itself
    wait_until(lambda: place.rests(called.id), "the run has ended", LIMIT)
    assert place.row(called.id)["status"] == RunStatus.CANCELLED
    assert place.outside.happened(word) == 0


@row("`revoke(id)`")
def test_a_revoke_counts_for_a_resumed_run_only_if_it_came_after_the_resume(place: Place, word: str) -> None:
    called = place.fails.delay(word)
    with pytest.raises(KeyError):
        called.get(timeout=LIMIT)
    place.app.control.revoke(called.id, reply=True, timeout=LIMIT, limit=1)
    place.fails.run_handle(called).resume(who="kim", why="the bug is mended")
    wait_until(lambda: len(place.outside.seen(word)) == 2, "the resumed run was worked on", LIMIT)
    wait_until(lambda: place.rests(called.id), "the resumed run has ended", LIMIT)
    assert place.row(called.id)["status"] == RunStatus.FAILED

    with place.unrung():
        place.fails.run_handle(called).resume(who="kim", why="again")
    place.app.control.revoke(called.id, reply=True, timeout=LIMIT, limit=1)
    wait_until(lambda: place.rests(called.id), "the run that was revoked after its resume has ended", LIMIT)
    assert place.row(called.id)["status"] == RunStatus.CANCELLED
    assert len(place.outside.seen(word)) == 2


@row("`revoke(id, terminate=True)`")
def test_a_terminated_call_ends_when_its_doubt_is_settled(place: Place, word: str) -> None:
    place.outside.gate(word).touch()
    called = place.probed.delay(word)
    wait_until(lambda: place.outside.happened(word), "the effect happened, and nobody wrote it down", LIMIT)
    place.app.control.revoke(called.id, terminate=True, signal="SIGKILL", reply=True, timeout=LIMIT, limit=1)
    wait_until(lambda: place.rests(called.id), "the run has ended", LIMIT)
    with pytest.raises(TaskRevokedError):
        called.get(timeout=LIMIT)
    assert place.row(called.id)["status"] == RunStatus.CANCELLED
    with place.runtime.engine.connect() as connection:
        (operation,) = place.runtime.ledger.of_run(connection, called.id)
    assert operation.status == OperationStatus.SUCCEEDED  # its probe was asked
    assert place.outside.happened(word) == 1
    assert len(place.outside.seen(word)) == 1


# -- crashes --------------------------------------------------------------------------------------------------------------


@row("a child that is killed")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point("effect", "shop.pay", "after"), id="after the effect"),
        pytest.param(Point("commit", "outcome", "after"), id="after its record"),
        pytest.param(Point("commit", "step", "after"), id="between the run's end and its result"),
    ],
)
def test_a_killed_process_repeats_nothing_and_loses_no_result(place: Place, word: str, point: Point) -> None:
    run_id = f"killed-{word}"
    place.kills.plan([Kill("child", Crossing(1, point), run_id)])
    called = place.pay.apply_async((word,), task_id=run_id, link=place.add.si(1, 2, f"after-{word}"))
    assert called.get(timeout=LIMIT) == {"order": word, "cents": 300}
    assert [done.kill.run_id for done in place.kills.carried_out() if done.kill.run_id == run_id] == [run_id]
    assert place.outside.happened(word) == 1
    wait_until(lambda: place.rests(run_id), "the result is known to be stored", LIMIT)
    callback = wait_until(lambda: place.outside.seen(f"after-{word}"), "the callback ran", LIMIT)
    wait_until(lambda: place.rests(callback[0]), "the callback ended", LIMIT)
    assert place.outside.seen(f"after-{word}") == callback


@row("an emptied broker, a lost doorbell")
def test_a_result_comes_although_the_broker_was_emptied(place: Place, word: str) -> None:
    with place.unrung():
        called = place.pay.delay(word)
        later = place.add.apply_async((1, 2), countdown=0.5)
    place.empty_the_broker()
    assert called.get(timeout=LIMIT)["order"] == word
    assert later.get(timeout=LIMIT) == 3
    assert place.outside.happened(word) == 1


# -- the page -------------------------------------------------------------------------------------------------------------


def test_every_row_of_the_table_has_a_test_and_every_test_a_row() -> None:
    table = PAGE.read_text(encoding="utf-8").split("## What each of Celery's features does", 1)[1].split("\n## ", 1)[0]
    written = set(re.findall(r"^\| (?!feature|---)(.+?) \|", table, re.MULTILINE))
    assert written == ROWS
