"""A bank over HTTP whose answers get lost, come late or say no (I5, I6): judged by the bank's own book."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from agent_tasks import NotHappened, Operation, RunFailed, ToolFailed, done
from agent_tasks.recovery import MAX_SENDS
from agent_tasks.states import OperationStatus, RunStatus
from tests import vendor_server as ways
from tests.market import HORIZON_SECONDS, Market, market
from tests.vendor_server import ERROR, IN_USE, LOST_ON_THE_WAY, RESET, TOO_MANY, UNAUTHORIZED, Refused, Way, late

GUARDED = ("keyed", "probed", "manual")


@pytest.fixture
def here(database_url: str) -> Iterator[Market]:
    with market(database_url) as opened:
        yield opened


LOST = {"a reset": ways.RESET, "silence": ways.SILENT, "half an answer": ways.HALF, "no JSON": ways.GARBAGE}


@pytest.mark.parametrize("effect", GUARDED)
@pytest.mark.parametrize("lost", LOST)
def test_an_answer_that_is_lost_after_the_effect_charges_once(here: Market, lost: str, effect: str) -> None:
    here.client.patience = 0.2 if lost == "silence" else 5
    here.script(LOST[lost])
    order = here.start(here.charge(effect))
    assert here.operation().status is OperationStatus.UNKNOWN
    here.client.patience = 5

    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()
    assert here.output() == here.operation().result
    assert len(here.bank.requests) == (2 if effect == "keyed" else 1)


@pytest.mark.parametrize("effect", ["read", "repeatable"])
def test_a_step_sees_the_lost_answer_of_what_may_be_asked_twice_as_a_failure(here: Market, effect: str) -> None:
    here.script(RESET)
    charge = here.charge(effect)

    def pay(_state: Any) -> Any:
        try:
            charge(100)
        except (ToolFailed, OSError):
            return done(charge(100))

    order = here.start(charge, pay)
    assert here.settle(order) is RunStatus.SUCCEEDED  # a repeatable one is waited for first: it may still land
    first, second = here.operations()
    assert (first.status, second.status) == (OperationStatus.FAILED, OperationStatus.SUCCEEDED)
    assert here.output() == here.bank.book[1].seen()


# -- a gateway gives up, and the bank goes on ---------------------------------------------------------------------------


@pytest.mark.parametrize("effect", GUARDED)
def test_a_504_whose_effect_lands_within_settle_charges_once(here: Market, effect: str) -> None:
    here.script(late(HORIZON_SECONDS - 1))
    order = here.start(here.charge(effect))

    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()


def test_a_504_whose_effect_lands_after_settle_charges_once_under_a_key(here: Market) -> None:
    """Each resend meets "in use" until it lands, which `refused=` lists and which settles nothing."""
    here.script(late(3 * HORIZON_SECONDS))
    order = here.start(here.charge("keyed"))

    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()
    assert len(here.bank.requests) > 2


@pytest.mark.parametrize("effect", ["probed", "manual"])
def test_a_504_whose_effect_lands_after_settle_is_the_limit_that_is_documented(here: Market, effect: str) -> None:
    """Nobody on our side can know better: `settle=` was not true."""
    here.script(late(3 * HORIZON_SECONDS))
    order = here.start(here.charge(effect))
    assert here.settle(order) is RunStatus.SUCCEEDED
    here.bank.advance(3 * HORIZON_SECONDS)

    assert here.bank.count() == {here.operation().operation_id: 2}


@pytest.mark.parametrize("effect", ["probed", "manual"])
def test_a_bank_that_keeps_references_unique_charges_once_however_late_it_is(database_url: str, effect: str) -> None:
    with market(database_url, unique=True) as here:
        here.script(late(3 * HORIZON_SECONDS))
        order = here.start(here.charge(effect))
        assert here.settle(order) is RunStatus.SUCCEEDED
        here.bank.advance(3 * HORIZON_SECONDS)
        here.charged_once()


def test_a_request_that_lands_between_the_probe_and_the_next_one_is_found_by_a_unique_reference(
    database_url: str,
) -> None:
    """The second request is refused, since the first one landed before it; `refused=` would take that for a no."""
    with market(database_url, unique=True) as here:
        here.script(late(HORIZON_SECONDS + 1))

        def probe(operation: Operation) -> Any:
            answer = here.look(operation)
            here.bank.advance(2)
            return answer

        order = here.start(here.charge("probed", probe=probe, refused=()))
        assert here.settle(order) is RunStatus.SUCCEEDED
        here.charged_once()


@pytest.mark.parametrize("effect", ["probed", "manual"])
def test_a_reference_that_was_voided_before_anybody_said_no_charges_once(here: Market, effect: str) -> None:
    """Voided, it can never land; the new request has to bring another name, so it is found under none of the old."""
    here.script(late(3 * HORIZON_SECONDS))

    def probe(operation: Operation) -> NotHappened:
        here.client.void(f"{operation.operation_id}-{operation.attempts}")
        return NotHappened()

    charge = here.charge(effect, probe=probe if effect == "probed" else None)
    charge.body = lambda operation, cents: here.client.charge(f"{operation.operation_id}-{operation.attempts}", cents)
    order = here.start(charge)
    here.drive(order)
    if effect == "manual":
        probe(here.operation())
        here.reply(order, "did-not-happen")

    assert here.drive(order) is RunStatus.SUCCEEDED
    here.bank.advance(3 * HORIZON_SECONDS)
    assert here.bank.count() == {f"{here.operation().operation_id}-2": 1}


@pytest.mark.parametrize("effect", ["probed", "manual"])
def test_a_request_that_expires_at_its_horizon_charges_once(here: Market, effect: str) -> None:
    here.script(late(3 * HORIZON_SECONDS))
    charge = here.charge(effect)
    charge.body = lambda operation, cents: here.client.charge(
        operation.operation_id, cents, not_after=operation.horizon_at / 1e6
    )
    order = here.start(charge)
    assert here.settle(order) is RunStatus.SUCCEEDED
    here.bank.advance(3 * HORIZON_SECONDS)
    here.charged_once()


# -- a list that lags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [1, 30, 59])
def test_a_charge_that_the_list_does_not_show_yet_is_not_charged_again(database_url: str, lag: float) -> None:
    """The probe says "not happened" at once; before `visible_after` has passed that is taken as "ask again"."""
    with market(database_url, lag=HORIZON_SECONDS + lag) as here:
        here.script(RESET)
        order = here.start(here.charge("probed", visible_after=timedelta(seconds=60)))

        here.later(order, HORIZON_SECONDS + 0.1)
        assert here.evidence()[-1] == ("probe", "ask again")
        assert here.operation().status is OperationStatus.UNKNOWN
        assert here.drive(order) is RunStatus.SUCCEEDED
        here.charged_once()
        assert len(here.bank.requests) == 1


def test_an_empty_list_is_believed_once_visible_after_has_passed(here: Market) -> None:
    here.script(LOST_ON_THE_WAY)
    order = here.start(here.charge("probed", visible_after=timedelta(seconds=60)))
    here.later(order, HORIZON_SECONDS + 0.1)
    here.later(order, 59)
    assert len(here.bank.requests) == 1
    assert here.drive(order) is RunStatus.SUCCEEDED
    here.charged_once()
    assert len(here.bank.requests) == 2


# -- the bank says no ----------------------------------------------------------------------------------------------------

NOES = {"in use": IN_USE, "too many": TOO_MANY, "unauthorized": UNAUTHORIZED}


@pytest.mark.parametrize("effect", [*GUARDED, "repeatable", "read"])
@pytest.mark.parametrize("no", NOES)
def test_a_refusal_as_the_first_answer_settles_it(here: Market, no: str, effect: str) -> None:
    here.script(NOES[no])
    here.start(here.charge(effect))
    assert here.operation().status is OperationStatus.FAILED
    with pytest.raises(RunFailed, match=f"Refused: {NOES[no].status}"):
        here.output()
    assert here.bank.book == []


@pytest.mark.parametrize("first", [RESET, LOST_ON_THE_WAY], ids=["happened", "did not happen"])
@pytest.mark.parametrize("no", NOES)
def test_a_refusal_after_a_lost_answer_leaves_the_doubt_to_the_key(here: Market, no: str, first: Way) -> None:
    here.script(first, NOES[no], NOES[no])
    here.bank.key_life = None if first is RESET else 3600.0
    if first is RESET:  # the effect is in the book; a refusal of the same key is scripted over the bank's own answer
        here.bank.unique = True
    order = here.start(here.charge("keyed"))
    for _ in range(2):
        here.later(order, here.operation().attempts * 2)
        assert here.operation().status is OperationStatus.UNKNOWN
    assert [what for what, _said in here.evidence()] == ["unknown"] * 3

    assert here.settle(order) is RunStatus.SUCCEEDED
    here.charged_once()


def test_a_refusal_after_a_probe_had_settled_the_earlier_request_settles_it(here: Market) -> None:
    here.script(LOST_ON_THE_WAY, UNAUTHORIZED)
    order = here.start(here.charge("probed"))
    assert here.drive(order) is RunStatus.FAILED
    assert here.operation().status is OperationStatus.FAILED
    assert here.bank.book == []


# -- an error that is stored for a key; clients that resend by themselves -------------------------------------------------


@pytest.mark.parametrize("probe", [False, True], ids=["person", "probe"])
def test_an_error_that_the_bank_stored_for_a_key_ends_the_sends(database_url: str, probe: bool) -> None:
    with market(database_url, stored_errors=True, key_life=86_400 * 30) as here:
        here.script(ERROR)
        order = here.start(
            here.charge("keyed", probe=here.look if probe else None, key_lifetime=timedelta(days=30)),
        )
        here.drive(order, rounds=3 * MAX_SENDS)
        assert len({request["key"] for request in here.bank.requests}) == 1
        assert here.bank.book == []
        assert here.operation().status is not OperationStatus.SUCCEEDED
        assert here.questions() == (["sends"] if probe else ["unknown"])
        assert len(here.bank.requests) == MAX_SENDS


def session_that_resends() -> requests.Session:
    session = requests.Session()
    resend = Retry(total=3, backoff_factor=0, allowed_methods=None, status_forcelist=(502, 504))
    session.mount("http://", HTTPAdapter(max_retries=resend))
    return session


def resending(here: Market, effect: str) -> Any:
    charge = here.charge(effect)

    def body(operation: Operation, cents: int) -> Any:
        with session_that_resends() as session:
            headers = {"Idempotency-Key": operation.idempotency_key} if effect == "keyed" else {}
            answer = session.post(
                f"http://127.0.0.1:{here.bank.port}/charges",
                json={"reference": operation.operation_id, "cents": cents},
                headers=headers,
                timeout=operation.remaining(),
            )
        answer.raise_for_status()
        return answer.json()

    charge.body = body
    return charge


def test_a_client_that_resends_by_itself_charges_once_under_a_key(here: Market) -> None:
    here.script(RESET, RESET)
    here.start(resending(here, "keyed"))
    assert len(here.bank.requests) == 3
    here.charged_once()


def test_a_client_that_resends_by_itself_doubles_a_probed_call_unless_references_are_unique(here: Market) -> None:
    """Each request of the library is one of its own, of which the ledger sees one: turn resending off there."""
    here.script(RESET, RESET)
    here.start(resending(here, "probed"))
    assert here.bank.count() == {here.operation().operation_id: 3}


def test_a_unique_reference_makes_a_client_that_resends_by_itself_safe(database_url: str) -> None:
    with market(database_url, unique=True) as here:
        here.script(RESET)
        order = here.start(resending(here, "probed"))  # the second request is refused: requests.HTTPError, a doubt
        assert here.operation().status is OperationStatus.UNKNOWN
        assert here.drive(order) is RunStatus.SUCCEEDED
        here.charged_once()


def test_the_classes_of_the_client_are_what_the_tools_list() -> None:
    assert issubclass(Refused, ways.Answered)
