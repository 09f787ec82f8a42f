"""What comes back from a vendor's client may be anything: no value and no exception makes a call act twice (I15)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

import checkpoint
from agent_tasks import Happened, Operation, StepSuspended, Tool, current_run, done, tool
from agent_tasks.boundary import Point
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import Duel, duel

TIMEOUT = timedelta(seconds=10)
KINDS: dict[str, dict[str, Any]] = {
    "manual": {"effect": "manual", "timeout": TIMEOUT},
    "probed": {"effect": "probed", "timeout": TIMEOUT},
    "keyed": {"effect": "keyed", "key_lifetime": timedelta(hours=1), "timeout": TIMEOUT},
    "repeatable": {"effect": "repeatable", "why": "sets a value"},
    "transactional": {"effect": "transactional"},
    "read": {"effect": "read"},
}


@pytest.fixture
def here(database_url: str) -> Iterator[Duel]:
    with duel(database_url) as both:
        yield both


def acting(here: Duel, effect: str, answer: Callable[[], Any], **more: Any) -> Tool[..., Any]:
    """Return a tool whose first request answers so, and whose others say "done"."""

    @tool(name="act", bind=True, **KINDS[effect], **more)
    def act(operation: Operation) -> Any:
        here.requests.append("act")
        if operation.connection is not None:
            operation.connection.execute(text("INSERT INTO effects VALUES ('act')"))
        return answer() if len(here.requests) == 1 else "done"

    if effect == "probed":
        act.probe(lambda _operation: Happened("probed"))
    return act


def insistent(act: Any) -> Any:
    """A step that calls again whatever it catches."""
    for _ in range(5):
        try:
            return done(act())
        except BaseException as error:  # noqa: BLE001 - the point of these tests
            if isinstance(error, StepSuspended):
                continue
    return done("it gave up")


class Timeout(BaseException):
    """What gevent, eventlet and some SDKs raise: no `Exception`, so that nobody catches it by accident."""


def raising(error: Callable[[], BaseException]) -> Callable[[], Any]:
    def answer() -> Any:
        raise error()

    return answer


# -- exceptions of the client's own kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["manual", "probed", "keyed", "repeatable", "transactional"])
def test_a_base_exception_of_an_sdk_in_a_body_dooms_the_attempt(here: Duel, effect: str) -> None:
    make_table(here)
    act = acting(here, effect, raising(Timeout))
    order = here.agent(act, pay=lambda _state: insistent(act))
    run = here.run(order)
    assert len(here.requests) == 1
    assert run.status is RunStatus.WAITING
    assert "Timeout" in str(run.waiting_for)
    here.sound()
    if here.drive(order) is RunStatus.NEEDS_ATTENTION:
        here.reply(order, "happened", "said by kim")
    assert run.status is RunStatus.SUCCEEDED
    assert len(here.requests) == (1 if effect in ("manual", "probed") else 2)
    assert len(here.operations()) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("effect", "boundary"),
    [("manual", "intent"), ("manual", "outcome"), ("keyed", "outcome"), ("transactional", "effect and outcome")],
)
def test_a_base_exception_in_the_middle_of_a_commit_lets_nothing_be_done_twice(
    here: Duel, effect: str, boundary: str, moment: str
) -> None:
    """A gevent time-out fires at any statement, also at the engine's; the step must not take it for a no."""
    make_table(here)
    act = acting(here, effect, lambda: "done")
    fired = []

    def observer(point: Point) -> None:
        if point == Point("commit", boundary, moment) and not fired:
            fired.append(point)
            raise Timeout

    here.runtime.boundary.observer = observer
    order = here.agent(act, pay=lambda _state: insistent(act))
    run = here.run(order)
    assert fired
    assert len(here.requests) <= 1
    if here.row()["status"] == RunStatus.RUNNING:  # nobody knows whether the lease is held; the sweeper takes it over
        here.sweeper.sweep()
        here.later(order, here.runtime.settings.lease_seconds + 1)
    if here.drive(order) is RunStatus.NEEDS_ATTENTION:
        here.reply(order, "happened" if here.requests else "did-not-happen", "done" if here.requests else None)
    assert run.get(timeout=0) == "done"
    assert len(here.operations()) == 1
    acted = len(here.requests)
    if effect == "transactional":
        with here.runtime.engine.connect() as connection:
            acted = len(connection.execute(text("SELECT * FROM effects")).all())
    assert acted == (2 if effect == "keyed" and moment == "before" else 1)


def test_a_step_that_lets_a_base_exception_go_is_a_crash_and_is_parked_in_the_end(here: Duel) -> None:
    act = acting(here, "read", raising(Timeout))

    def pay(_state: Any) -> Any:
        here.requests.clear()
        return done(act())

    run = here.run(here.agent(act, pay=pay))
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert here.questions() == ["crashes"]
    here.sound()


def test_an_interrupt_from_the_keyboard_still_ends_the_process(here: Duel) -> None:
    order = here.agent(pay=lambda _state: raising(KeyboardInterrupt)())
    with pytest.raises(KeyboardInterrupt):
        here.run(order)


class Mute(Exception):
    """Its text takes the process with it."""

    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


class Opaque(Exception):
    """Its arguments can be neither pickled, stored nor compared."""

    def __init__(self, said: object = None) -> None:
        super().__init__(lambda: said, object())


class Huge(Exception):
    """A client that hands out the whole answer."""

    def __init__(self, body: str = "x" * 10_000_000) -> None:
        super().__init__(body)


class Masked(Exception):
    """It does not say its class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("masked")


class Declined(Exception):
    pass


class Claimed(Exception):
    """It says that it is a refusal, as a proxy of one would; whatever raised it, the vendor did not."""

    @property
    def __class__(self) -> Any:
        return Declined


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "doubt"])
@pytest.mark.parametrize("error", [Mute, Opaque, Huge, Masked])
def test_no_exception_of_a_client_slips_past_its_record(here: Duel, error: type[Exception], refused: bool) -> None:
    act = acting(here, "manual", raising(error), refused=(error,) if refused else ())
    seen: list[type[BaseException]] = []

    def pay(_state: Any) -> Any:
        try:
            return done(act())
        except Exception as failure:  # noqa: BLE001
            seen.append(type(failure))
            if current_run.number == 1:
                raise MemoryError from None
            return done("refused")

    order = here.agent(act, pay=pay)
    run = here.run(order)
    here.sound()
    if refused:
        assert (seen, here.operation().status) == ([error, error], OperationStatus.FAILED)
        assert len(here.operation().row["error"]) < 100_000
        return
    assert (run.status, seen) == (RunStatus.WAITING, [])
    here.drive(order)
    here.reply(order, "happened", "ok")
    assert run.get(timeout=0) == "ok"
    assert len(here.requests) == 1


@pytest.mark.parametrize("effect", ["manual", "probed", "keyed"])
def test_only_the_class_that_an_exception_has_makes_it_a_refusal(here: Duel, effect: str) -> None:
    act = acting(here, effect, raising(Claimed), refused=(Declined,))
    run = here.run(here.agent(act, pay=lambda _state: done(act())))
    assert run.status is RunStatus.WAITING
    assert here.operation().status is not OperationStatus.FAILED


# -- results ------------------------------------------------------------------------------------------------------------------


def test_a_result_of_50_megabytes_is_recorded_and_goes_on_with_the_step(here: Duel) -> None:
    body = os.urandom(50_000_000)
    act = acting(here, "manual", lambda: body)

    def pay(_state: Any) -> Any:
        answer = act()
        if current_run.number == 1:
            raise MemoryError
        return done(answer == body)

    assert here.run(here.agent(act, pay=pay)).get(timeout=0) is True
    assert here.requests == ["act"]


def test_a_result_beyond_what_is_stored_is_a_success_that_a_person_completes(here: Duel) -> None:
    act = acting(here, "manual", lambda: b"x" * (64 * 1024 * 1024 + 1))
    run = here.run(here.agent(act, pay=lambda _state: insistent(act)))
    assert (run.status, here.questions(), here.requests) == (RunStatus.NEEDS_ATTENTION, ["result"], ["act"])
    here.sound()


class Wrapped:
    """A value whose encoding runs code of its own."""

    hook: Callable[[], Any] = staticmethod(lambda: None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrapped)

    __hash__ = object.__hash__


checkpoint.register("tests.Wrapped", Wrapped, to_data=lambda _value: Wrapped.hook(), from_data=lambda _data: Wrapped())


@pytest.fixture
def hooked() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Set what the encoding of a `Wrapped` does."""
    yield lambda hook: setattr(Wrapped, "hook", staticmethod(hook))
    Wrapped.hook = staticmethod(lambda: None)


@pytest.mark.parametrize("error", [Timeout, SystemExit, MemoryError, RuntimeError])
def test_an_encoding_that_raises_anything_is_a_success_without_a_result(
    here: Duel, error: type[BaseException], hooked: Callable[[Callable[[], Any]], None]
) -> None:
    hooked(raising(error))
    act = acting(here, "manual", Wrapped)
    run = here.run(here.agent(act, pay=lambda _state: insistent(act)))
    assert (run.status, here.questions(), here.requests) == (RunStatus.NEEDS_ATTENTION, ["result"], ["act"])
    here.sound()


@pytest.mark.parametrize("effect", ["manual", "keyed", "transactional"])
def test_an_encoding_that_calls_a_tool_calls_none_of_the_step(
    here: Duel, effect: str, hooked: Callable[[Callable[[], Any]], None]
) -> None:
    """It would take the place of one of the step's own calls, and only in the attempt that encodes."""
    make_table(here)
    mails: list[str] = []

    @tool(effect="manual", timeout=TIMEOUT)
    def mail(to: str) -> str:
        mails.append(to)
        return to

    hooked(lambda: mail("from the encoding"))
    act = acting(here, effect, Wrapped)

    def pay(_state: Any) -> Any:
        with contextlib.suppress(Exception):
            act()
        return done(mail("kim"))

    order = here.agent(act, mail, pay=pay)
    run = here.run(order)
    if run.status is RunStatus.NEEDS_ATTENTION:
        assert here.questions() == ["result"]
        here.reply(order, "happened", "ok")
    assert run.get(timeout=0) == "kim"
    assert mails == ["kim"]
    here.sound()


def make_table(here: Duel) -> None:
    with here.runtime.engine.connect() as connection, connection.begin():
        connection.execute(text("CREATE TABLE IF NOT EXISTS effects (what VARCHAR(40))"))
