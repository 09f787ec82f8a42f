"""Connections to PostgreSQL that break between a commit and its answer, or fall silent, under real workers."""

from __future__ import annotations

import pytest

from tests.proxy import Fault, proxied
from tests.recovery.stage import Stage
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.recovery,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.serves(ledger="postgresql", broker="redis", pool="prefork"),
]

#: What a transaction of this name says, and how many of them a run of the shop makes.
COMMITS = {
    "claim": (b"agent_runs.fence + ", 3),
    "intent": (b"INSERT INTO agent_operations", 4),
    "outcome": (b"UPDATE agent_operations SET", 4),
    "step": (b"INSERT INTO agent_checkpoint_", 3),
    "transaction": (b"INSERT INTO books", 1),
}
RENEWAL = b"UPDATE agent_runs SET due_at="


def test_a_commit_whose_answer_is_cut_off_is_found_by_the_attempt_that_sent_it(on_servers: Stage) -> None:
    stage = on_servers
    cut = {
        f"cut-{name}-{nth}": (words, nth) for name, (words, number) in COMMITS.items() for nth in range(1, number + 1)
    }
    with proxied(stage.environ["AGENT_DATABASE_URL"]) as (proxy, url):
        faults = [proxy.plan(Fault("cut", run_id.encode(), words, nth=nth)) for run_id, (words, nth) in cut.items()]
        with stage.workers(*2 * [{"AGENT_DATABASE_URL": url, "AGENT_LEASE_SECONDS": "10"}], concurrency=2):
            for run_id in cut:
                stage.enqueue(run_id)
            stage.finish(cut)
    assert [fault.words for fault in faults if not fault.met.is_set()] == []
    assert {run_id: stage.row(run_id)["fence"] for run_id in cut} == dict.fromkeys(cut, 3)  # one attempt a step
    assert stage.faults(cut) == []


def test_connections_that_fall_silent_and_time_limits_in_the_middle_of_a_commit_stop_nobody(on_servers: Stage) -> None:
    stage = on_servers
    silent = {
        "silent-claim": b"agent_runs.fence + ",
        "silent-outcome": COMMITS["outcome"][0],
        "silent-renewal": RENEWAL,
    }
    late = {f"late-{name}": COMMITS[name][0] for name in ("intent", "outcome", "step")}
    with proxied(stage.environ["AGENT_DATABASE_URL"]) as (proxy, url):
        faults = [proxy.plan(Fault("swallow", run_id.encode(), words)) for run_id, words in silent.items()]
        faults += [proxy.plan(Fault("delay", run_id.encode(), words)) for run_id, words in late.items()]
        with stage.workers(*2 * [{"AGENT_DATABASE_URL": url}], concurrency=4) as fleet:
            for run_id in silent:
                stage.enqueue(run_id, gated=run_id == "silent-renewal")
            for run_id in late:
                stage.enqueue(run_id, agent="hurried")
            wait_until(faults[2].met.is_set, "a renewal met silence")
            stage.open_gate("silent-renewal")
            stage.finish({**silent, **late})
            assert len(fleet.said("Soft time limit (2s) exceeded")) >= len(late)
    assert [fault.words for fault in faults if not fault.met.is_set()] == []
    assert stage.faults({**silent, **late}) == []
