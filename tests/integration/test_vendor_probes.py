"""Probes that hang, lie, put off for ever or are gone, beside a real bank (I6, I9, I14)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent_tasks import AskAgain, CannotTell, Happened, NotHappened, Operation, PartlyHappened, RunHandle, done, tool
from agent_tasks.probing import MAX_PUT_OFFS, run_probe
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.states import OperationStatus, RunStatus
from tests.duel import RUN
from tests.market import HORIZON_SECONDS, TIMEOUT, Market, market
from tests.vendor_server import LOST_ON_THE_WAY, RESET, Refused


@pytest.fixture
def here(database_url: str) -> Iterator[Market]:
    with market(database_url) as opened:
        yield opened


# -- a vendor that does nothing, for ever --------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["probed", "keyed"])
def test_a_request_that_never_happens_is_a_persons_after_so_many_sends(here: Market, effect: str) -> None:
    here.script(*[LOST_ON_THE_WAY] * (MAX_SENDS + 1))
    order = here.start(here.charge(effect, probe=here.look))

    assert here.drive(order, rounds=5 * MAX_SENDS) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), len(here.bank.requests)) == (["sends"], MAX_SENDS)
    assert here.operation().status is OperationStatus.PENDING
    assert RunHandle(here.rival, RUN).waiting_for == (
        f"a person: charge was sent {MAX_SENDS} times and did not happen: send it again?"
    )

    here.reply(order, "retry")  # one more each time that somebody says so
    assert here.drive(order) is RunStatus.NEEDS_ATTENTION
    assert (here.questions(), len(here.bank.requests)) == (["sends"], MAX_SENDS + 1)
    here.reply(order, "retry")
    assert here.drive(order) is RunStatus.SUCCEEDED
    here.charged_once()


def test_a_run_whose_request_never_happens_can_be_ended(here: Market) -> None:
    here.script(*[LOST_ON_THE_WAY] * MAX_SENDS)
    order = here.start(here.charge("probed"))
    here.drive(order, rounds=5 * MAX_SENDS)
    here.reply(order, "abort")
    here.sound()
    assert order.run(RUN).status is RunStatus.FAILED
    assert here.bank.book == []


# -- a probe that puts us off for ever ------------------------------------------------------------------------------------


def put_off(here: Market, answers: list[Any]) -> Any:
    """Start a charge whose probe says AskAgain, until the test says something else; return its agent."""
    here.script(RESET)
    charge = here.charge("probed", probe=lambda _operation: answers[-1])
    order = here.start(charge)
    here.later(order, HORIZON_SECONDS + 0.1)
    for _ in range(MAX_PUT_OFFS - 1):
        assert here.questions() == []
        here.later(order, 61)
    return order


def test_a_probe_that_puts_off_for_ever_goes_on_being_asked_and_a_person_may_say_first(here: Market) -> None:
    order = put_off(here, [AskAgain(timedelta(minutes=1))])
    here.sound()
    run = RunHandle(here.rival, RUN)
    assert (run.status, here.questions()) == (RunStatus.WAITING, ["unknown"])
    assert str(run.waiting_for).endswith(
        f"Z: until the probe of charge may be asked again, or for a person; it has said: ask again ({MAX_PUT_OFFS} times)"
    )
    (opened,) = run.inbox()
    here.later(order, 61)  # still asked, and the question is the same one
    (fact,) = [fact for fact in here.operation().evidence if fact["what"] == "probe"]
    assert (fact["times"], run.inbox()) == (MAX_PUT_OFFS + 1, [opened])

    assert here.reply(order, "happened", here.bank.book[0].seen())
    here.charged_once()
    assert run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("answer", ["happened", "not happened", "cannot tell"])
def test_a_probe_that_answers_at_last_takes_the_question_back(here: Market, answer: str) -> None:
    answers: list[Any] = [AskAgain(timedelta(minutes=1))]
    order = put_off(here, answers)
    (item,) = RunHandle(here.rival, RUN).inbox()
    if answer == "not happened":
        here.bank.book.clear()
    answers.append(
        {
            "happened": Happened({"id": "ch_1", "reference": here.operation().operation_id, "cents": 100}),
            "not happened": NotHappened(),
            "cannot tell": CannotTell("the list is closed"),
        }[answer]
    )
    here.later(order, 61)
    here.sound()
    if answer == "cannot tell":  # now it blocks
        assert (order.run(RUN).status, here.questions()) == (RunStatus.NEEDS_ATTENTION, ["unknown"])
        return
    assert here.drive(order) is RunStatus.SUCCEEDED
    here.charged_once()
    assert here.questions() == []
    withdrawn = here.rival.boundary.read(here.rival.engine, lambda c: here.rival.inbox.find(c, item.item_id))
    assert withdrawn is not None
    assert (withdrawn.reply, withdrawn.replied_by, withdrawn.replied_why) == (None, "evidence", "its probe answered")


def test_what_a_probe_says_for_months_is_kept_in_one_line(here: Market) -> None:
    """Each probe at its date would otherwise write all that was said before it once more."""
    put_off(here, [AskAgain(timedelta(minutes=1))])
    assert [fact["what"] for fact in here.operation().evidence] == ["unknown", "probe"]


# -- probes that are wrong ------------------------------------------------------------------------------------------------


def test_a_probe_that_lies_is_believed_and_its_word_is_kept(here: Market) -> None:
    here.script(LOST_ON_THE_WAY)
    order = here.start(here.charge("probed", probe=lambda _operation: Happened("ch_9", external_id="ch_9")))
    assert here.drive(order) is RunStatus.SUCCEEDED
    operation = here.operation()
    assert (operation.row["resolved_by"], operation.external_id, operation.result) == ("probe", "ch_9", "ch_9")
    assert here.evidence()[-1] == ("probe", "happened")
    assert here.bank.book == []


@pytest.mark.parametrize("who", ["probe", "person"])
def test_a_refusal_that_comes_in_after_somebody_said_happened_is_shown_to_a_person(here: Market, who: str) -> None:
    """The run went on with a charge that the bank never made, and only the zombie knows."""

    def body(_operation: Operation, _cents: int) -> Any:
        here.meanwhile(order, seconds=HORIZON_SECONDS + 1, reply="happened" if who == "person" else None)
        raise Refused("no money")

    charge = here.charge("probed" if who == "probe" else "manual", probe=None)
    charge.body = body
    if who == "probe":
        charge.probe(lambda _operation: Happened("ch_9"))
    order = here.agent(charge, pay=lambda _state: done(charge(100)))
    run = here.run(order)

    assert run.status is RunStatus.SUCCEEDED
    assert here.questions() == ["refused"]
    assert here.evidence()[-1][0] == "late failed"
    here.sound()
    assert not here.reply(order, "keep")
    assert here.questions() == []


def test_a_probe_that_was_there_and_is_gone_after_a_deploy_leaves_the_doubt_to_a_person(here: Market) -> None:
    here.script(RESET)
    here.start(here.charge("probed"))
    manual = here.charge("manual")
    order = here.deploy(manual, pay=lambda _state: done(manual(100)))
    here.later(order, HORIZON_SECONDS + 0.1)
    assert here.questions() == ["unknown"]
    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()


def test_a_tool_that_is_gone_after_a_deploy_leaves_the_doubt_to_a_person(here: Market) -> None:
    here.script(RESET)
    here.start(here.charge("probed"))
    order = here.deploy(pay=lambda _state: done("free"))
    here.later(order, HORIZON_SECONDS + 0.1)
    assert here.questions() == ["unknown"]
    here.reply(order, "happened", "ch_1")
    assert here.questions() == ["orphan"]
    here.reply(order, "keep")
    assert here.output() == "free"
    here.sound()


class Unfaithful:
    """Raises whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Late(Happened):
    """An answer whose parts raise when they are looked at."""

    @property
    def result(self) -> Any:
        raise SystemExit

    def __init__(self) -> None: ...


class Half(PartlyHappened):
    """Another."""

    def __str__(self) -> str:
        raise SystemExit

    def __init__(self) -> None:
        object.__setattr__(self, "evidence", self)


NONSENSE = {
    "unfaithful": Unfaithful,
    "late": Late,
    "half": Half,
    "a tuple": lambda: (Happened(1),),
    "a class": lambda: Happened,
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_no_answer_of_a_probe_does_anything_when_it_is_looked_at(nonsense: str) -> None:
    charge = tool(effect="probed", timeout=TIMEOUT, name="charge", bind=False)(lambda cents: cents)
    charge.probe(lambda _operation: NONSENSE[nonsense]())
    answer = run_probe(charge, Operation({"operation_id": "op_1"}, None, 0.0))  # type: ignore[arg-type]
    assert type(answer) in (CannotTell, PartlyHappened)


def test_a_probe_that_hangs_holds_its_run_for_its_own_timeout_and_is_not_waited_for(here: Market) -> None:
    end = threading.Event()
    charge = here.charge("probed")
    charge.probe(timeout=timedelta(milliseconds=50))(lambda _operation: end.wait(60))
    here.script(RESET)
    order = here.start(charge)
    here.later(order, HORIZON_SECONDS + 0.1)
    end.set()
    assert here.questions() == ["unknown"]
    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()
