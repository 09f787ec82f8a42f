"""Steps that share a message: how far one message goes, and what each step in it finds (I2, I4, I7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from agent_tasks import Agent, Coalesce, calls, carry_run, current_run, done, run_calls, tool
from agent_tasks.boundary import Point
from agent_tasks.coalesce import BOUNDARIES, EACH
from agent_tasks.coordinator import Coordinator
from agent_tasks.doorbell import InlineBell
from agent_tasks.errors import ConfigurationError
from agent_tasks.shown import EVENTS_KEY, ShownSteps
from agent_tasks.slots import Slots
from agent_tasks.states import Question, RunStatus
from tests.clocks import StandingClock
from tests.duel import Outage
from tests.one_process import OneProcess
from tests.rows import Rows

RUN = "run-1"


class Here(OneProcess):
    """Counts the doorbells that were answered, and the commits of steps."""

    def __init__(self, url: str) -> None:
        super().__init__(url, StandingClock())
        self.messages, self.commits = 0, 0
        self.runtime.boundary.observer = self._observe

    def _observe(self, point: Point) -> None:
        self.messages += str(point) == "after ack doorbell"
        self.commits += str(point) == "after commit step"

    def chain(self, *bodies: Callable[[Any], object], coalesce: Any = True, **options: Any) -> Agent:
        """Make an agent of steps that go on with the next one: s0, s1 …; each notes that it ran."""
        made = Agent("order", app=self.app, coalesce=coalesce, **options)

        def declare(index: int, body: Callable[[Any], object]) -> None:
            def step(state: Any) -> Any:
                state.setdefault("ran", []).append(index)
                said = body(state)
                if said is not None:
                    return said
                return done(dict(state)) if index == len(bodies) - 1 else made.steps[f"s{index + 1}"]

            made.step(step, name=f"s{index}", start=index == 0)

        for index, body in enumerate(bodies):
            declare(index, body)
        return made


@pytest.fixture
def here(database_url: str) -> Iterator[Here]:
    with closing(Here(database_url)) as made:
        yield made


def nothing(_state: Any) -> None:
    pass


# -- how far a message goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coalesce", "commits"), [(True, 4), (Coalesce(), 4), (Coalesce(checkpoints=BOUNDARIES), 2)])
def test_steps_that_follow_each_other_share_a_message(here: Here, coalesce: Any, commits: int) -> None:
    agent = here.chain(nothing, nothing, nothing, nothing, coalesce=coalesce)
    assert here.run(agent).get(timeout=0) == {"ran": [0, 1, 2, 3]}
    assert (here.messages, here.commits) == (1, commits)
    assert Rows(here).find(RUN)["seq"] == 4
    made = [(each.seq, each.step) for each in here.runtime.store.list_checkpoints(RUN)]
    assert made == [(4, "s3"), (3, "s2"), (2, "s1"), (1, "s0"), (0, None)]


@pytest.mark.parametrize("coalesce", [None, False])
def test_without_it_each_step_has_a_message_of_its_own(here: Here, coalesce: Any) -> None:
    here.run(here.chain(nothing, nothing, nothing, coalesce=coalesce))
    assert here.messages == 3


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_after_its_seconds_a_message_ends_and_the_next_step_has_its_own(here: Here, checkpoints: str) -> None:
    def take_time(_state: Any) -> None:
        here.runtime.clock.advance(1.0)

    agent = here.chain(take_time, take_time, take_time, coalesce=Coalesce(seconds=1.5, checkpoints=checkpoints))
    assert here.run(agent).get(timeout=0) == {"ran": [0, 1, 2]}
    assert here.messages == 2


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_worker_that_is_told_to_stop_begins_no_more_steps_and_rings(here: Here, checkpoints: str) -> None:
    agent = here.chain(
        nothing, lambda _state: here.runtime.slots.stop(), nothing, coalesce=Coalesce(checkpoints=checkpoints)
    )
    agent.enqueue({}, run_id=RUN)
    bell = here.runtime.bell
    assert isinstance(bell, InlineBell)
    ring = bell.rings.popleft()
    Coordinator(here.runtime).handle(agent, ring.step, ring.run_id, ring.seq)
    row = Rows(here).find(RUN)
    assert (row["status"], row["seq"], row["next_step"], row["lease_token"]) == (RunStatus.QUEUED, 2, "s2", None)
    assert [each.step for each in bell.rings] == ["s2"]


@pytest.mark.parametrize("option", [{"rate_limit": "100/s"}, {"time_limit": 60}, {"soft_time_limit": 60}], ids=str)
@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_step_that_celery_limits_has_a_message_of_its_own(
    here: Here, checkpoints: str, option: dict[str, Any]
) -> None:
    agent = Agent("order", app=here.app, coalesce=Coalesce(checkpoints=checkpoints))
    agent.step(lambda _state: agent.steps["s1"], name="s0", start=True)
    agent.step(lambda _state: agent.steps["s2"], name="s1", **option)
    agent.step(lambda _state: done("so"), name="s2")
    assert here.run(agent).get(timeout=0) == "so"
    assert here.messages == 3


def test_a_step_with_another_queue_has_a_message_there(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.runtime.bell, "queue_for", lambda task: "slow" if task == "order.s1" else "inline")
    agent = here.chain(nothing, nothing, nothing)
    agent.enqueue({}, run_id=RUN)
    assert isinstance(here.runtime.bell, InlineBell)
    assert [ring.queue for ring in here.runtime.bell.rings] == ["inline"]
    here.work(agent)
    assert here.messages == 3


def test_the_last_step_that_is_allowed_is_followed_by_the_question(here: Here) -> None:
    agent = Agent("order", app=here.app, coalesce=True, max_steps=3)
    agent.step(lambda _state: agent.steps["again"], name="again")
    run = here.run(agent)
    assert run.status is RunStatus.NEEDS_ATTENTION
    (question,) = here.runtime.boundary.read(
        here.runtime.engine, lambda connection: here.runtime.inbox.items(connection, RUN)
    )
    assert (question.question, Rows(here).find(RUN)["seq"]) == (Question.STEPS, 3)


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_state_that_the_health_check_refuses_is_left_at_a_claim_as_ever(here: Here, checkpoints: str) -> None:
    def spoil(state: Any) -> None:
        state["spoilt"] = not current_run.line

    agent = here.chain(nothing, spoil, nothing, coalesce=Coalesce(checkpoints=checkpoints))
    agent.health_check(lambda state: not state.get("spoilt"))
    assert here.run(agent).get(timeout=0) == {"ran": [0, 1, 2], "spoilt": False}
    assert Rows(here).find(RUN)["line"] == 1


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_health_check_that_runs_out_of_memory_is_counted_at_the_claim(here: Here, checkpoints: str) -> None:
    agent = here.chain(nothing, nothing, coalesce=Coalesce(checkpoints=checkpoints))
    asked: list[int] = []

    @agent.health_check
    def check(state: Any) -> None:
        asked.append(len(state.get("ran", [])))
        if asked == [0, 1]:
            raise MemoryError

    assert here.run(agent).status is RunStatus.SUCCEEDED
    assert (here.messages, asked) == (2, [0, 1, 1])


# -- what each step finds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_step_gets_the_state_as_it_would_come_back_from_the_ledger(here: Here, checkpoints: str) -> None:
    kept: list[Any] = []

    def share(state: Any) -> None:
        state["a"] = state["b"] = ["tea"]
        state.messages.append({"role": "user"})
        kept.extend([state["a"], state.messages])

    def look(state: Any) -> None:
        kept[0].append("what a thread of the step before writes")
        kept[1].clear()
        state["a"].append("milk")

    agent = here.chain(share, look, lambda state: done([state["a"], state["b"], list(state.messages)]))
    agent.coalesce = Coalesce(checkpoints=checkpoints)
    assert here.run(agent).get(timeout=0) == [["tea", "milk"], ["tea"], [{"role": "user"}]]


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_each_step_has_its_own_seq_and_a_first_attempt(here: Here, checkpoints: str) -> None:
    seen: list[Any] = []

    def look(_state: Any) -> None:
        seen.append((current_run.seq, current_run.step, current_run.number, current_run.retries))

    here.run(here.chain(look, look, look, coalesce=Coalesce(checkpoints=checkpoints)))
    assert seen == [(1, "s0", 1, 0), (2, "s1", 1, 0), (3, "s2", 1, 0)]


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_each_step_has_the_whole_of_its_time(here: Here, checkpoints: str) -> None:
    left: list[float] = []

    def look(_state: Any) -> None:
        (lease,) = here.runtime.slots.leases()
        left.append(round(lease.deadline - here.runtime.clock.local()))
        assert lease.renew_until == lease.deadline
        here.runtime.clock.advance(100)

    here.run(here.chain(look, look, coalesce=Coalesce(seconds=1_000, checkpoints=checkpoints)))
    assert left == [round(here.runtime.settings.step_timeout_seconds)] * 2


@pytest.mark.parametrize("failing", [0, 1])
def test_retries_are_the_steps_own(here: Here, failing: int) -> None:
    tries: list[int] = []
    agent = Agent("order", app=here.app, coalesce=True)

    def fail_twice(index: int) -> None:
        if index == failing:
            tries.append(current_run.retries)
            if len(tries) < 3:
                raise ConnectionError("away")

    @agent.step(start=True, max_retries=2, default_retry_delay=1)
    def first(_state: Any) -> Any:
        fail_twice(0)
        return second

    @agent.step(max_retries=2, default_retry_delay=1)
    def second(_state: Any) -> Any:
        fail_twice(1)
        return done("so")

    run = here.run(agent)
    for _ in range(2):
        here.later(agent, 5)
    assert (run.get(timeout=0), tries) == ("so", [0, 1, 2])


# -- the commit that keeps the lease ---------------------------------------------------------------------------------------


def test_a_commit_renews_the_lease_and_begins_the_count_of_attempts_anew(here: Here) -> None:
    rows: list[Any] = []

    def look(_state: Any) -> None:
        rows.append(Rows(here).find(RUN))
        here.runtime.clock.advance(5)

    agent = here.chain(look, look, coalesce=Coalesce(seconds=60))
    agent.enqueue({}, run_id=RUN)
    Rows(here).write(RUN, attempts=1, crashes=1)  # the first step has lost a worker
    here.work(agent)
    assert [(row["seq"], row["next_step"], row["status"]) for row in rows] == [
        (0, "s0", "running"),
        (1, "s1", "running"),
    ]
    assert [(row["attempts"], row["crashes"]) for row in rows] == [(2, 1), (1, 0)]
    assert rows[0]["fence"] == rows[1]["fence"]
    assert rows[1]["due_at"] - rows[0]["due_at"] >= 5_000_000


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_commit_without_an_answer_is_found_and_the_message_goes_on(here: Here, checkpoints: str, moment: str) -> None:
    outage = Outage("step", moment)
    agent = here.chain(nothing, nothing, nothing, coalesce=Coalesce(checkpoints=checkpoints))
    agent.enqueue({}, run_id=RUN)
    here.runtime.boundary.observer = outage
    here.work(agent)
    row = Rows(here).find(RUN)
    assert (row["status"], row["fence"], outage.hits) == (RunStatus.SUCCEEDED, 1, 1)


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_lease_that_another_took_ends_the_message_and_nothing_more_is_written(here: Here, checkpoints: str) -> None:
    ran: list[str] = []

    def lose(_state: Any) -> None:
        ran.append("lost")
        Rows(here).write(RUN, fence=7, lease_token="another")

    agent = here.chain(nothing, lose, lambda _state: ran.append("after"), coalesce=Coalesce(checkpoints=checkpoints))
    agent.enqueue({}, run_id=RUN)
    here.work(agent)
    row = Rows(here).find(RUN)
    assert (row["fence"], row["seq"], row["status"]) == (7, 1 if checkpoints == EACH else 0, RunStatus.RUNNING)
    assert ran == (["lost"] if checkpoints == EACH else ["lost", "after"])


@pytest.mark.parametrize("checkpoints", [EACH, BOUNDARIES])
def test_a_cancel_is_honoured_before_the_next_step_or_the_next_boundary(here: Here, checkpoints: str) -> None:
    def cancel(_state: Any) -> None:
        agent.run(RUN).cancel(who="kim", why="changed her mind")

    charged: list[int] = []

    @tool(effect="manual", timeout=timedelta(seconds=10))
    def charge() -> None:
        charged.append(1)

    agent = here.chain(
        nothing, cancel, lambda _state: charge(), coalesce=Coalesce(checkpoints=checkpoints), tools=[charge]
    )
    run = here.run(agent)
    assert (run.status, charged, run.operations()) == (RunStatus.CANCELLED, [], [])
    assert Rows(here).find(RUN)["seq"] == 2


def test_a_state_that_cannot_be_stored_fails_the_step_that_made_it(here: Here) -> None:
    def spoil(state: Any) -> None:
        state["thing"] = object()

    run = here.run(here.chain(nothing, spoil, nothing, coalesce=Coalesce(checkpoints=BOUNDARIES)))
    assert run.status is RunStatus.FAILED
    assert Rows(here).find(RUN)["seq"] == 1


# -- what is held ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "declared"), [("read", {}), ("manual", {"timeout": timedelta(seconds=10)})])
def test_the_steps_before_a_recorded_call_are_committed_before_it(
    here: Here, effect: str, declared: dict[str, Any]
) -> None:
    at: list[int] = []

    @tool(effect=effect, **declared)
    def act() -> int:
        at.append(Rows(here).find(RUN)["seq"])
        return 1

    def call(_state: Any) -> None:
        at.append(Rows(here).find(RUN)["seq"])
        act()

    agent = here.chain(nothing, nothing, call, nothing, nothing, coalesce=Coalesce(checkpoints=BOUNDARIES), tools=[act])
    run = here.run(agent)
    assert at == [0, 2]
    assert [operation.seq for operation in run.operations()] == [3]
    assert (here.messages, here.commits) == (
        1,
        4,
    )  # what was held, the step with the call, what was held, the last step


def in_threads(charge: Any) -> None:
    threads = [threading.Thread(target=carry_run(charge), args=(what,)) for what in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS: dict[str, Callable[[Any], object]] = {
    "a batch": lambda charge: run_calls([charge.call("a"), charge.call("b")]),
    "two threads": in_threads,
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_makes_the_first_recorded_call_the_steps_before_it_are_committed_once(here: Here, way: str) -> None:
    at: list[int] = []

    @tool(effect="keyed", key_lifetime=timedelta(hours=1), bind=False, key=lambda what: what)
    def charge(what: str) -> None:
        at.append(Rows(here).find(RUN)["seq"])

    how = Coalesce(checkpoints=BOUNDARIES)
    agent = here.chain(
        nothing, nothing, lambda _state: WAYS[way](charge) and None, nothing, coalesce=how, tools=[charge]
    )
    run = here.run(agent)
    assert (at, run.status) == ([2, 2], RunStatus.SUCCEEDED)
    assert here.commits == 3


def test_an_async_step_commits_what_is_held_before_its_first_call(here: Here) -> None:
    at: list[int] = []

    @tool(effect="manual", timeout=timedelta(seconds=10))
    async def charge() -> None:
        at.append(Rows(here).find(RUN)["seq"])

    agent = Agent("order", app=here.app, tools=[charge], coalesce=Coalesce(checkpoints=BOUNDARIES))
    agent.step(lambda _state: agent.steps["pay"], name="think", start=True)

    @agent.step
    async def pay(_state: Any) -> Any:
        await charge()
        return done(current_run.seq)

    assert (here.run(agent).get(timeout=0), at) == (2, [1])


def test_a_call_that_is_not_recorded_is_no_boundary(here: Here) -> None:
    at: list[int] = []

    @tool(effect="read", record=False)
    def glance() -> int:
        at.append(Rows(here).find(RUN)["seq"])
        return 1

    here.run(
        here.chain(
            nothing,
            lambda _state: glance() and None,
            nothing,
            coalesce=Coalesce(checkpoints=BOUNDARIES),
            tools=[glance],
        )
    )
    assert (at, here.commits) == ([0], 2)


def test_what_is_held_is_committed_before_calls_are_planned(here: Here) -> None:
    @tool(effect="manual", timeout=timedelta(seconds=10))
    def act(what: str) -> str:
        return what.upper()

    agent = Agent("order", app=here.app, tools=[act], coalesce=Coalesce(checkpoints=BOUNDARIES))
    agent.step(lambda _state: agent.steps["ask"], name="think", start=True)
    agent.step(lambda _state: calls([act.call("a"), act.call("b")], then=agent.steps["hear"]), name="ask")
    agent.step(lambda _state, results: done(results), name="hear")
    run = here.run(agent)
    assert run.get(timeout=0) == ["A", "B"]
    assert ([operation.seq for operation in run.operations()], here.messages) == ([3, 3], 1)


def test_a_step_that_fails_is_named_as_the_one_although_those_before_it_were_held(here: Here) -> None:
    def fail(_state: Any) -> None:
        raise KeyError("tea")

    run = here.run(here.chain(nothing, nothing, fail, coalesce=Coalesce(checkpoints=BOUNDARIES)))
    row = Rows(here).find(RUN)
    assert (run.status, row["seq"]) == (RunStatus.FAILED, 2)


# -- what people are shown -----------------------------------------------------------------------------------------------------


class Message:
    """The side of Celery of a message, whose events are kept."""

    def __init__(self, *, sends: bool = True, broken: bool = False) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.app = Celery("shown", broker="memory://", set_as_current=False)
        self.request = SimpleNamespace(
            id="message", root_id=None, hostname="w@h", delivery_info={EVENTS_KEY: 1} if sends else {}
        )
        self._broken = broken
        self.app.events = SimpleNamespace(default_dispatcher=lambda **_options: self)

    def __enter__(self) -> Message:  # noqa: PYI034
        if self._broken:
            raise ConnectionError("no broker")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))


def show(message: Message) -> ShownSteps:
    shown = ShownSteps(message, "order", RUN)  # type: ignore[arg-type]
    for seq, step in enumerate(["pay", "mail"], 2):
        shown.begun(step, seq)
        shown.ended()
    return shown


def test_a_step_that_follows_is_shown_under_its_own_name_and_as_the_messages_child() -> None:
    message = Message()
    assert show(message).count == 3
    assert [kind for kind, _ in message.sent] == ["task-received", "task-started", "task-succeeded"] * 2
    received = [fields for kind, fields in message.sent if kind == "task-received"]
    assert [(each["name"], each["args"], each["parent_id"], each["root_id"]) for each in received] == [
        ("order.pay", "['run-1', 2]", "message", "message"),
        ("order.mail", "['run-1', 3]", "message", "message"),
    ]
    assert len({fields["uuid"] for _, fields in message.sent}) == 2


def test_where_the_worker_sends_no_events_none_are_sent() -> None:
    message = Message(sends=False)
    assert (show(message).count, message.sent) == (3, [])


def test_a_broker_that_takes_no_events_is_said_once_and_hinders_no_step(caplog: pytest.LogCaptureFixture) -> None:
    assert show(Message(broken=True)).count == 3
    assert [record.getMessage().count("no broker") for record in caplog.records] == [1]


# -- what may be said ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("each", r"must be True, False or a Coalesce, got 'each'. Write Coalesce\(checkpoints='each'\)"),
        ("yes", "must be True, False or a Coalesce, got 'yes'.$"),
        (5, r"got 5. Write Coalesce\(seconds=5\)"),
        (Coalesce, r"Write Coalesce\(\)"),
        ({"seconds": 1}, "must be True, False or a Coalesce"),
    ],
)
def test_what_is_no_way_to_coalesce_is_refused_when_the_agent_is_made(given: Any, said: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"coalesce= of agent 'order' .*{said}" if "must" not in said else said
    ):
        Agent("order", app=Celery("refused", broker="memory://", set_as_current=False), coalesce=given)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "1", None, timedelta(seconds=1)])
def test_seconds_that_are_no_number_above_0_are_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="seconds= of Coalesce must be a number above 0"):
        Coalesce(seconds=seconds)


@pytest.mark.parametrize("checkpoints", ["boundary", "", None, 1])
def test_other_ways_to_commit_checkpoints_are_refused(checkpoints: Any) -> None:
    with pytest.raises(ConfigurationError, match="checkpoints= of Coalesce must be 'each' or 'boundaries'"):
        Coalesce(checkpoints=checkpoints)


def test_a_worker_that_was_told_to_stop_is_seen_by_the_processes_that_it_started(tmp_path: Any) -> None:
    slots = Slots(tmp_path / "slots")
    inherited = Slots(tmp_path / "slots", existing=True)
    assert not inherited.stopping
    slots.stop()
    assert inherited.stopping
    assert inherited.leases() == []


def test_an_inline_run_goes_the_same_way() -> None:
    agent = Agent("inline", app=Celery("inline", broker="memory://", set_as_current=False), coalesce=True)
    agent.step(lambda _state: agent.steps["two"], name="one", start=True)
    agent.step(lambda _state: done(current_run.seq), name="two")
    assert agent.run_inline({}) == 2
