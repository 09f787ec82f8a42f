"""The lines of the engine that protect something, each with what takes it out and the tests that notice."""

from __future__ import annotations

from dataclasses import dataclass

_FENCES = "tests/unit/test_fences.py"
_VENDORS = "tests/integration/test_protocol_vendors.py"
_ZOMBIES = "tests/integration/test_protocol_zombies.py"
_DOUBTS = "tests/integration/test_protocol_doubts.py"
_COMMITS = "tests/integration/test_protocol_commits.py"
_CALLS = "tests/integration/test_protocol_calls.py"
_GENERATIONS = "tests/integration/test_generations.py"
_CRASHES = "tests/integration/test_crashes.py"
_CANCEL = "tests/integration/test_protocol_cancel.py"
_RETRIES = "tests/unit/test_retries.py"
_STEP_RETRIES = "tests/integration/test_protocol_retries.py"
_THREADS = "tests/integration/test_threads.py"
_FORKED = "tests/integration/test_forked_steps.py"
_SWEEPER = "tests/unit/test_sweeper.py"
_HEARTBEAT = "tests/unit/test_heartbeat.py"
_FOLDED = "tests/unit/test_folded.py"
_BATCHES = "tests/integration/test_batches.py"
_PLANNED = "tests/integration/test_planned_calls.py"
_COALESCE = "tests/unit/test_coalesce.py"
_PROGRESS = "tests/integration/test_progress.py"
_WAITS = "tests/integration/test_waits.py"
_MYSQL = "tests/integration/test_mysql.py"
_BACKLOG = "tests/integration/test_backlog.py"
_FILES = "tests/contract/test_file_store.py"
_RESEALING = "tests/contract/test_resealing.py"
_PROCESSES = "tests/contract/test_store_processes.py"
_FILE_CRASHES = "tests/contract/test_file_crashes.py"
_FALLING_BACK = "tests/contract/test_falling_back.py"
_STORES = "tests/contract/test_store_contract.py"

_OVERTAKEN = "test_an_attempt_whose_fence_differs_in_one_word_writes_nothing"
_NOT_AS_KNOWN = "test_a_run_that_is_not_as_its_attempt_knows_it_is_left_to_the_longer_way"
_WAITED_FOR = "test_what_is_written_to_the_run_while_its_row_is_waited_for_counts"
_FOREIGN = "test_a_row_that_is_not_as_the_writer_saw_it_is_left_alone"


@dataclass(frozen=True)
class Mutant:
    """One protection taken out of the code.

    Attributes:
        name: what is missing.
        invariant: that it breaks.
        file: of the line.
        old, new: the line as it stands, once in its file, and what takes its place.
        tests: pytest's names of those that must fail.
    """

    name: str
    invariant: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    # -- I2: one owner
    Mutant(
        "the fence out of the WHERE of an attempt's writes",
        "I2",
        "agent_tasks/runs.py",
        "        c.fence == attempt.fence,\n        c.lease_token",
        "        c.lease_token",
        (f"{_FENCES}::{_OVERTAKEN}[sqlite-its commit-another fence]",),
    ),
    Mutant(
        "the token out of it",
        "I2",
        "agent_tasks/runs.py",
        "        c.lease_token == attempt.token,\n        c.seq",
        "        c.seq",
        (f"{_FENCES}::{_OVERTAKEN}[sqlite-its commit-another token]",),
    ),
    Mutant(
        "the seq out of it",
        "I2",
        "agent_tasks/runs.py",
        "        c.seq == attempt.seq - 1,\n        c.status == RunStatus.RUNNING,",
        "        c.status == RunStatus.RUNNING,",
        (f"{_FENCES}::{_OVERTAKEN}[sqlite-its commit-another seq]",),
    ),
    Mutant(
        "the status out of it",
        "I2",
        "agent_tasks/runs.py",
        "        c.seq == attempt.seq - 1,\n        c.status == RunStatus.RUNNING,",
        "        c.seq == attempt.seq - 1,",
        (f"{_FENCES}::{_OVERTAKEN}[sqlite-its commit-it is waiting]",),
    ),
    Mutant(
        "FOR SHARE out of the intent",
        "I2",
        "agent_tasks/runs.py",
        ".where(*fence_of(table, OWNER)).with_for_update(read=share, key_share=not share)",
        ".where(*fence_of(table, OWNER))",
        (f"{_FENCES}::test_the_row_that_an_attempt_looks_at_is_its_own_until_it_commits",),
    ),
    Mutant(
        "the fence out of the intent",
        "I2",
        "agent_tasks/recorder.py",
        "            if run is None:\n                return False, None\n            attempt.cancelled",
        "            if run is None:\n"
        "                return True, runtime.ledger.begin(connection, attempt, request, seen)\n"
        "            attempt.cancelled",
        (f"{_ZOMBIES}::test_the_intent_of_a_zombie_that_was_overtaken_between_two_calls_is_not_written",),
    ),
    Mutant(
        "the fence out of the outcome",
        "I2",
        "agent_tasks/recorder.py",
        "            if run is not None and runtime.runs.is_owner(run, attempt):",
        "            if run is not None:",
        (f"{_ZOMBIES}::test_a_late_success_settles_the_doubt_and_requeues_the_waiting_run",),
    ),
    Mutant(
        "a late outcome does not requeue its run",
        "I2",
        "agent_tasks/recorder.py",
        "            return decisions.wake(connection, attempt.run_id, was=was)",
        "            return False",
        (f"{_ZOMBIES}::test_a_late_success_settles_the_doubt_and_requeues_the_waiting_run",),
    ),
    Mutant(
        "a contradiction is not shown to a person",
        "I2",
        "agent_tasks/recorder.py",
        "            self.runtime.inbox.open(connection, attempt.run_id, about(told, operation))",
        "            pass",
        (f"{_ZOMBIES}::test_a_late_success_of_what_was_sent_again_is_shown_to_a_person",),
    ),
    Mutant(
        "a claim takes the lease of a run that is running",
        "I2",
        "agent_tasks/runs.py",
        "            c.status == RunStatus.QUEUED,\n            c.protocol",
        "            c.protocol",
        (f"{_FENCES}::test_a_claim_takes_only_the_queued_run_that_its_doorbell_names",),
    ),
    Mutant(
        "the token out of the compare-and-set of a late outcome",
        "I2",
        "agent_tasks/recorder.py",
        "from_=from_, fence=fence, token=token, status=status, **values",
        "from_=from_, fence=fence, status=status, **values",
        (f"{_GENERATIONS}::test_the_late_outcome_of_a_deleted_run_settles_nothing_of_the_one_that_has_its_id_now",),
    ),
    Mutant(
        "tools may be called in a forked child",
        "I2",
        "agent_tasks/attempt.py",
        "        if os.getpid() != self.pid:",
        "        if False:",
        (f"{_FORKED}::test_no_tool_is_called_in_a_child",),
    ),
    Mutant(
        "a forked child comes back from its step",
        "I7",
        "agent_tasks/children.py",
        "        if os.getpid() == self._pid:",
        "        if self._pid:",
        (f"{_FORKED}::test_a_child_that_comes_back_from_the_step_ends_there",),
    ),
    Mutant(
        "a child uses its parent's connection",
        "I2",
        "agent_tasks/forks.py",
        "    if made_in not in (None, os.getpid()):",
        "    if False:",
        (f"{_FORKED}::test_a_child_does_not_use_the_connection_of_a_transactional_body",),
    ),
    Mutant(
        "an intent with other arguments is taken for this one",
        "I4",
        "agent_tasks/ledger.py",
        '            and found.attempts == wanted\n            and found.row["args_digest"] == request.digest',
        "            and found.attempts == wanted",
        (f"{_FENCES}::test_an_intent_is_found_again_only_where_every_word_of_it_is_this_one",),
    ),
    Mutant(
        "an own outcome that the ledger contradicts is dropped",
        "I2",
        "agent_tasks/recorder.py",
        "            self._late_outcome(connection, attempt, operation, status, fact, values)\n            return False",
        "            return True",
        (f"{_FENCES}::test_an_own_outcome_that_the_ledger_contradicts_is_kept_and_shown",),
    ),
    # -- I2, I7, I13, I14: the usual case in one statement
    Mutant(
        "the lock on the run's row out of the folded statements",
        "I2",
        "agent_tasks/folded.py",
        '.where(*fence_of(self._runs, OWNER), *more)\n        return query.with_for_update(read=share, key_share=not share).cte("owned")',
        '.where(*fence_of(self._runs, OWNER), *more)\n        return query.cte("owned")',
        (
            f"{_FOLDED}::{_WAITED_FOR}[intent-another fence]",
            f"{_FOLDED}::{_WAITED_FOR}[record-another token]",
            f"{_FOLDED}::{_WAITED_FOR}[outcome-another fence]",
        ),
    ),
    Mutant(
        "the fence out of the folded statements",
        "I2",
        "agent_tasks/folded.py",
        "        query = select(c.run_id, c.request).where(*fence_of(self._runs, OWNER), *more)",
        "        query = select(c.run_id, c.request).where(c.run_id == OWNER.run_id, *more)",
        (
            f"{_FOLDED}::{_NOT_AS_KNOWN}[intent-another fence]",
            f"{_FOLDED}::{_NOT_AS_KNOWN}[record-another fence]",
            f"{_FOLDED}::{_NOT_AS_KNOWN}[outcome-another fence]",
            f"{_FOLDED}::{_NOT_AS_KNOWN}[step-another fence]",
        ),
    ),
    Mutant(
        "a folded intent is written over news",
        "I13",
        "agent_tasks/folded.py",
        "self._owned(self._saw(), self._runs.c.request.is_(None))",
        "self._owned(self._runs.c.request.is_(None))",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[intent-there is news]", f"{_FOLDED}::{_WAITED_FOR}[intent-there is news]"),
    ),
    Mutant(
        "a folded intent of a cancelled run is written",
        "I2",
        "agent_tasks/folded.py",
        "self._owned(self._saw(), self._runs.c.request.is_(None))",
        "self._owned(self._saw())",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[intent-it is cancelled]",),
    ),
    Mutant(
        "a folded record does not hear of a cancel",
        "I2",
        "agent_tasks/folded.py",
        "        run = self._owned(self._runs.c.request.is_(None))",
        "        run = self._owned()",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[record-it is cancelled]",),
    ),
    Mutant(
        "a folded commit is written over news",
        "I13",
        "agent_tasks/folded.py",
        "self._owned(self._saw(), table.c.request.is_(None), share=False)",
        "self._owned(table.c.request.is_(None), share=False)",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[step-there is news]", f"{_FOLDED}::{_WAITED_FOR}[last step-there is news]"),
    ),
    Mutant(
        "a folded commit does not hear of a cancel",
        "I2",
        "agent_tasks/folded.py",
        "self._owned(self._saw(), table.c.request.is_(None), share=False)",
        "self._owned(self._saw(), share=False)",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[step-it is cancelled]", f"{_FOLDED}::{_WAITED_FOR}[step-it is cancelled]"),
    ),
    Mutant(
        "a folded outcome settles another try",
        "I14",
        "agent_tasks/folded.py",
        '                table.c.attempts == bindparam("old_attempts"),\n',
        "",
        (f"{_FOLDED}::test_an_outcome_settles_only_the_request_that_it_is_of",),
    ),
    Mutant(
        "a folded outcome settles what is settled",
        "I14",
        "agent_tasks/folded.py",
        "                table.c.status == OperationStatus.EXECUTING,\n",
        "",
        (f"{_FOLDED}::test_an_outcome_settles_only_the_request_that_it_is_of",),
    ),
    Mutant(
        "a folded outcome settles the request of another attempt",
        "I14",
        "agent_tasks/folded.py",
        "                table.c.token == OWNER.token,\n",
        "",
        (f"{_FOLDED}::test_an_outcome_settles_only_the_request_that_it_is_of",),
    ),
    Mutant(
        "a checkpoint is appended whatever its guard says",
        "I7",
        "checkpoint/writer.py",
        "_parts(_move(tables).where(tables.heads.c.run_id == guard.c.run_id), tables, several=several)",
        "_parts(_move(tables), tables, several=several)",
        (f"{_FOLDED}::{_NOT_AS_KNOWN}[step-another fence]",),
    ),
    Mutant(
        "the run goes on although its head did not move",
        "I7",
        "agent_tasks/folded.py",
        "            .where(*fence_of(table, OWNER), table.c.run_id == moved.c.run_id)",
        "            .where(*fence_of(table, OWNER))",
        (f"{_FOLDED}::test_a_head_that_somebody_else_moved_leaves_nothing_half_done",),
    ),
    Mutant(
        "a claim trusts the checkpoint that it read beside a row that it waited for",
        "I2",
        "agent_tasks/shortcuts.py",
        '    if (found.head_line, found.head_seq) != (standing_line(row), row["seq"]) or row["line"] != found.head_line:',
        "    if found.head_line is None:",
        (f"{_FOLDED}::test_a_claim_that_waited_for_the_row_does_not_trust_the_checkpoint_that_it_read_beside_it",),
    ),
    # -- I3: intent first
    Mutant(
        "no intent before the body",
        "I3",
        "agent_tasks/calling.py",
        "    if effect is Effect.READ:\n        return _read(attempt, request, seen)",
        "    if effect is not Effect.TRANSACTIONAL:\n        return _read(attempt, request, seen)",
        (
            f"{_CRASHES}::test_a_crash_at_any_boundary_repeats_no_effect[sqlite-manual-the message is redelivered]",
            f"{_CRASHES}::test_a_crash_at_any_boundary_repeats_no_effect[sqlite-probed-the message is redelivered]",
        ),
    ),
    # -- I4: stable identity
    Mutant(
        "other arguments are not noticed",
        "I4",
        "agent_tasks/operations.py",
        'same_args=digest is None or digest == row["args_digest"],',
        "same_args=True,",
        (f"{_CALLS}::test_a_person_decides_what_other_arguments_mean",),
    ),
    # -- I6: lease-aware doubt
    Mutant(
        "no horizon",
        "I6",
        "agent_tasks/recovery.py",
        "    if not operation.horizon_passed:\n        return Decision.WAIT",
        "",
        (
            f"{_VENDORS}::test_nobody_is_asked_before_the_horizon",
            f"{_VENDORS}::test_no_person_is_asked_before_the_horizon",
        ),
    ),
    Mutant(
        "a body may begin past its deadline",
        "I6",
        "agent_tasks/calling.py",
        "    if operation.remaining() <= 0:",
        "    if operation.remaining() < 0:",
        (f"{_VENDORS}::test_a_body_whose_deadline_passed_before_it_began_is_not_begun",),
    ),
    Mutant(
        "an intent that is found again gets a new deadline",
        "I6",
        "agent_tasks/recorder.py",
        "            operation.deadline = deadline",
        "            operation.deadline = runtime.clock.local() + request.timeout_seconds",
        (f"{_COMMITS}::test_an_intent_that_is_found_again_keeps_its_first_deadline",),
    ),
    Mutant(
        "the empty answer of a vendor whose view lags is believed",
        "I6",
        "agent_tasks/probing.py",
        '        answer, said = later, f"{said}, which counts once the effect would be visible"',
        "        pass",
        (f"{_VENDORS}::test_an_empty_answer_is_believed_only_when_the_effect_would_be_visible",),
    ),
    Mutant(
        "a key is used after its life",
        "I6",
        "agent_tasks/recovery.py",
        "promise.effect is Effect.KEYED and operation.key_lives and",
        "promise.effect is Effect.KEYED and",
        (
            f"{_VENDORS}::test_a_key_whose_life_is_over_is_not_used_and_a_person_is_asked",
            f"{_VENDORS}::test_a_key_that_would_die_during_the_request_is_not_used",
        ),
    ),
    Mutant(
        "a refusal speaks for earlier requests too",
        "I6",
        "agent_tasks/calling.py",
        "guard.refuses(judged) and operation.unsettled == 0",
        "guard.refuses(judged)",
        (f"{_VENDORS}::test_a_refusal_after_an_ambiguous_try_settles_nothing",),
    ),
    Mutant(
        "a retry makes a call again that the step went on after",
        "I5",
        "agent_tasks/retries.py",
        "level = [call for call in last if not any(other >= place(call)[1:] for other in unasked)]",
        "level = last",
        (f"{_RETRIES}::test_a_retry_does_again_what_the_step_ended_on_and_nothing_that_it_went_on_after",),
    ),
    # -- I7: one commit
    Mutant(
        "a commit whose answer was lost is not found again",
        "I7",
        "agent_tasks/ending.py",
        '        if state.metadata.get("committed_by") != attempt.token:',
        "        if True:",
        (f"{_COMMITS}::test_a_commit_whose_answer_never_came_is_found_or_written_and_not_doubled",),
    ),
    # -- I8: nothing waits in a worker, and nothing goes round in one
    Mutant(
        "a vendor who says at once is called at once",
        "I8",
        "agent_tasks/retries.py",
        "max(said, SHORTEST_PAUSE.total_seconds())",
        "said",
        (
            f"{_STEP_RETRIES}::test_a_vendor_who_always_says_at_once_is_not_called_without_a_pause[sqlite-keyed-0]",
            f"{_STEP_RETRIES}::test_a_step_that_always_says_at_once_is_not_run_without_a_pause[sqlite]",
        ),
    ),
    Mutant(
        "a probe that says at once is asked at once",
        "I8",
        "agent_tasks/probing.py",
        "max(answer.after, SHORTEST_PAUSE)",
        "max(answer.after, timedelta(0))",
        (
            f"{_VENDORS}::test_a_probe_that_names_a_date_which_has_passed_is_not_asked_without_a_pause[sqlite-now]",
            f"{_VENDORS}::test_a_probe_that_names_a_date_which_has_passed_is_not_asked_without_a_pause[sqlite-past]",
        ),
    ),
    # -- I9: nothing is stuck silently
    Mutant(
        "a child is forked in the middle of a turn of its parent's threads",
        "I9",
        "agent_tasks/forks.py",
        "not _others(self._open) and not _others(self._turns)",
        "not _others(self._open)",
        (
            "tests/unit/test_forks.py::test_a_fork_waits_for_the_turn_of_another_thread_so_that_its_child_finds_no_lock_held",
        ),
    ),
    Mutant(
        "a late word about one end of a run lets another one rest",
        "I9",
        "agent_tasks/decisions.py",
        "c.run_id == run_id, c.finished_at == finished_at, ended",
        "c.run_id == run_id, ended",
        (f"{_FENCES}::{_FOREIGN}",),
    ),
    Mutant(
        "Ctrl-C in a call is a doubt and no more in a run in process",
        "I15",
        "agent_tasks/inline.py",
        "            _stop_if_interrupted(raised)\n",
        "",
        ("tests/unit/test_inline.py::test_ctrl_c_in_a_body_comes_out_of_a_run_in_process_at_once",),
    ),
    Mutant(
        "a heartbeat renews by run, whatever the fence",
        "I9",
        "agent_tasks/runs.py",
        "tuple_(c.run_id, c.fence).in_(leases), c.status == RunStatus.RUNNING",
        "c.run_id.in_([run_id for run_id, _ in leases]), c.status == RunStatus.RUNNING",
        (f"{_FENCES}::{_FOREIGN}[sqlite-a heartbeat for another fence]",),
    ),
    Mutant(
        "a heartbeat renews whatever the status",
        "I9",
        "agent_tasks/runs.py",
        "tuple_(c.run_id, c.fence).in_(leases), c.status == RunStatus.RUNNING",
        "tuple_(c.run_id, c.fence).in_(leases)",
        (
            f"{_FENCES}::{_FOREIGN}[sqlite-a heartbeat for a run that waits]",
            f"{_HEARTBEAT}::test_a_run_that_its_attempt_gave_back_is_not_renewed",
        ),
    ),
    Mutant(
        "an attempt past the step's time limit is renewed for ever",
        "I9",
        "agent_tasks/heartbeat.py",
        "if lease.fence is not None and now < lease.renew_until",
        "if lease.fence is not None",
        (f"{_HEARTBEAT}::test_a_lease_is_not_renewed_when",),
    ),
    Mutant(
        "due_at is moved for a ring whatever the status",
        "I9",
        "agent_tasks/due.py",
        "c.run_id == run_id, c.status == status, c.due_at == seen_due_at",
        "c.run_id == run_id, c.due_at == seen_due_at",
        (f"{_FENCES}::{_FOREIGN}[sqlite-a ring for a run that is running]",),
    ),
    Mutant(
        "due_at is moved for a ring whoever moved it before",
        "I9",
        "agent_tasks/due.py",
        "c.status == status, c.due_at == seen_due_at, c.due_at <= self.clock.now()",
        "c.status == status, c.due_at <= self.clock.now()",
        (f"{_FENCES}::{_FOREIGN}[sqlite-a ring for a due time that somebody moved]",),
    ),
    Mutant(
        "a run is woken whatever its status",
        "I9",
        "agent_tasks/due.py",
        "c.run_id == run_id, c.status == RunStatus.WAITING, c.due_at <= self.clock.now()",
        "c.run_id == run_id, c.due_at <= self.clock.now()",
        (f"{_FENCES}::{_FOREIGN}[sqlite-a waking of a run that is running]",),
    ),
    Mutant(
        "a wait is written over what came in since",
        "I9",
        "agent_tasks/runs.py",
        '        if row["wakeups"] == attempt.wakeups:',
        "        if True:",
        (f"{_ZOMBIES}::test_a_wait_is_not_written_over_an_outcome_that_came_in_since_the_claim",),
    ),
    Mutant(
        "leases are taken over at the first look after an outage",
        "I9",
        "agent_tasks/sweeper.py",
        "            if self._may_take_over():",
        "            if True:",
        (
            f"{_SWEEPER}::test_nothing_is_taken_over_before_a_full_lease_of_contact",
            f"{_SWEEPER}::test_an_outage_counts_the_contact_anew",
        ),
    ),
    Mutant(
        "no sweeper wakes what waits",
        "I9",
        "agent_tasks/sweeper.py",
        "            self._each(self._due(RunStatus.WAITING), partial(self._wake, swept=swept))",
        "            pass",
        (f"{_SWEEPER}::test_a_run_that_waits_for_a_time_is_woken_when_it_has_come",),
    ),
    # -- I13: no orphan in silence
    Mutant(
        "a new effect is begun whatever this line left out",
        "I13",
        "agent_tasks/calling.py",
        "        settle_unasked(attempt, at_end=False)",
        "        pass",
        (f"{_CALLS}::test_an_effect_of_a_path_that_is_not_taken_again_is_shown_before_anything_new_happens",),
    ),
    # -- I14: no doubt left behind
    Mutant(
        "an answer about one try settles another",
        "I14",
        "agent_tasks/ledger.py",
        "                c.attempts == operation.attempts,\n",
        "",
        (f"{_FENCES}::test_an_answer_about_one_try_never_settles_another",),
    ),
    Mutant(
        "a request is begun from another try than was seen",
        "I14",
        "agent_tasks/ledger.py",
        "c.status == seen.status, c.attempts == seen.attempts",
        "c.status == seen.status",
        (f"{_FENCES}::test_a_request_is_begun_only_from_the_row_that_was_seen",),
    ),
    Mutant(
        "a zombie's body may save its progress",
        "I2",
        "agent_tasks/interim.py",
        "            if run is None:\n                return False, False",
        "            if run is None:\n                return True, True",
        (f"{_PROGRESS}::test_what_a_zombie_saves_changes_nothing_and_tells_it_so[sqlite]",),
    ),
    Mutant(
        "progress is saved for a request that others have settled",
        "I14",
        "agent_tasks/interim.py",
        "connection, operation, from_=executing, token=attempt.token, progress=encoded",
        "connection, operation, from_=OperationStatus, token=attempt.token, progress=encoded",
        (f"{_PROGRESS}::test_what_a_body_saves_whose_call_others_have_settled_changes_nothing[sqlite]",),
    ),
    Mutant(
        "a run that is woken too early goes on",
        "I8",
        "agent_tasks/coordinator.py",
        "                sleep_on(attempt)",
        "                pass",
        (f"{_WAITS}::test_a_run_that_is_woken_before_its_time_sleeps_on[sqlite]",),
    ),
    Mutant(
        "a check is answered by what it read before",
        "I5",
        "agent_tasks/ending.py",
        "        self.runtime.ledger.forget_reads(connection, attempt.run_id, from_seq=attempt.seq, to_seq=attempt.seq)\n",
        "",
        (f"{_WAITS}::test_a_check_reads_anew_each_time_and_its_reads_have_one_row[sqlite]",),
    ),
    Mutant(
        "a step commits over a doubt that it did not ask about",
        "I14",
        "agent_tasks/coordinator.py",
        "            outcome = self._outcome_of(attempt, step, returned)\n            settle_unasked(attempt, at_end=True, goes_on=isinstance(outcome, (Next, NotYet)))",
        "            outcome = self._outcome_of(attempt, step, returned)",
        (f"{_DOUBTS}::test_a_doubt_that_the_next_attempt_does_not_ask_for_is_settled_before_its_commit",),
    ),
    Mutant(
        "a cancel ends a run in whose middle an operation is in doubt",
        "I14",
        "agent_tasks/cancelling.py",
        "    if runtime.ledger.doubts(connection, attempt.run_id):",
        "    if False:",
        (f"{_CANCEL}::test_a_wait_for_an_answer_that_never_came_becomes_the_end_once_it_is_settled",),
    ),
    Mutant(
        "a cancel ends a waiting run with an operation in doubt",
        "I14",
        "agent_tasks/cancelling.py",
        "    if runtime.ledger.doubts(connection, run_id):",
        "    if False:",
        (f"{_CANCEL}::test_a_person_is_asked_whether_it_happened_before_a_cancelled_run_ends",),
    ),
    # -- I15: code never sees a doubt
    Mutant(
        "what one run carried acts for it in the step of another",
        "I15",
        "agent_tasks/carrying.py",
        "        if maker is not None:\n            _check_place(function, maker, body)",
        "        pass",
        (
            f"{_THREADS}::test_a_function_that_another_run_carried_is_refused_and_the_run_that_calls_it_is_told[here_and_now]",
        ),
    ),
    Mutant(
        "another attempt's suspension is taken for the loss of one's own lease",
        "I15",
        "agent_tasks/coordinator.py",
        "return Fail(str(suspended)) if attempt.doomed is not None else self._failed(attempt, _of_another(suspended))",
        "from agent_tasks.suspensions import Lost\n\n            attempt.doomed = attempt.doomed or Lost(str(suspended))\n"
        "            return Fail(str(suspended))",
        (f"{_THREADS}::test_a_step_that_waits_for_what_another_run_left_behind_fails_and_says_why",),
    ),
    Mutant(
        "a doomed attempt may call again",
        "I15",
        "agent_tasks/attempt.py",
        "    def _check(self, tool: Tool[..., Any], *, numbered: bool) -> None:\n        self.raise_if_doomed()",
        "    def _check(self, tool: Tool[..., Any], *, numbered: bool) -> None:",
        (f"{_DOUBTS}::test_after_a_swallowed_doubt_neither_a_read_nor_a_call_with_a_key_of_its_own_is_made",),
    ),
    Mutant(
        "a doomed attempt may commit",
        "I15",
        "agent_tasks/ending.py",
        "        if attempt.doomed is not None:\n            self.suspend(attempt)\n        elif isinstance(outcome, Crashed):",
        "        if isinstance(outcome, Crashed):",
        (f"{_DOUBTS}::test_a_step_that_swallows_a_doubt_neither_acts_on_it_nor_commits_it",),
    ),
    Mutant(
        "a time-out counts as a failure",
        "I15",
        "agent_tasks/calling.py",
        "    if refused or guard.effect is Effect.REPEATABLE:",
        "    if True:",
        (f"{_DOUBTS}::test_no_exception_of_a_body_reaches_a_step_that_would_charge_again",),
    ),
    # -- batches
    Mutant(
        "a batch begins before it is planned",
        "I3",
        "agent_tasks/batches.py",
        "        plan(runtime.ledger, connection, attempt, missing.values())\n",
        "",
        (f"{_BATCHES}::test_the_whole_batch_is_planned_before_the_first_call_begins[sqlite]",),
    ),
    Mutant(
        "a plan takes what was done for what is to be done",
        "I5",
        "agent_tasks/plans.py",
        "        where=and_(c.attempts == 0, unbegun),\n",
        "",
        (f"{_BATCHES}::test_a_keyed_call_that_was_made_in_an_earlier_step_returns_its_recorded_result[sqlite]",),
    ),
    Mutant(
        "a retry makes only the last call of a batch again",
        "I5",
        "agent_tasks/retries.py",
        "        if last is None or batch is None:",
        "        if True:",
        (f"{_BATCHES}::test_a_retried_step_makes_again_all_that_failed_in_the_batch_that_it_ended_on[sqlite]",),
    ),
    Mutant(
        "the calls that a step returns are planned later than its commit",
        "I7",
        "agent_tasks/ending.py",
        "                plan_next(connection, attempt, outcome.batch)",
        "                pass",
        (f"{_PLANNED}::test_the_calls_are_planned_with_the_message_that_asks_for_them[sqlite]",),
    ),
    Mutant(
        "a later attempt begins what a failure kept from beginning",
        "I13",
        "agent_tasks/batches.py",
        "        if self.batch.on_error == COLLECT or not any(",
        "        if True or not any(",
        (f"{_BATCHES}::test_a_later_attempt_begins_nothing_that_a_failure_kept_from_beginning[sqlite]",),
    ),
    Mutant(
        "what one call of a batch has not come to yet is an orphan for the others",
        "I13",
        "agent_tasks/calling.py",
        "        and (at_end or not may_be_asked_for_yet(attempt, operation))\n",
        "",
        (f"{_BATCHES}::test_an_effect_inside_one_call_is_no_orphan_for_another_one[sqlite]",),
    ),
    Mutant(
        "an interrupted batch goes on beginning calls",
        "I14",
        "agent_tasks/batches.py",
        "                    self._stopped, interrupted = True, interrupted or error",
        "                    interrupted = interrupted or error",
        (f"{_BATCHES}::test_a_time_limit_that_strikes_while_calls_are_under_way_is_raised_after_their_end",),
    ),
    # -- steps that share a message
    Mutant(
        "the commit of the steps that are held, before a call",
        "I4",
        "agent_tasks/attempt.py",
        "            commit_held(self)\n",
        "            pass\n",
        (f"{_COALESCE}::test_the_steps_before_a_recorded_call_are_committed_before_it",),
    ),
    Mutant(
        "the attempt that has begun with the commit that keeps the lease",
        "I2",
        "agent_tasks/runs.py",
        '"status": RunStatus.RUNNING, "attempts": 1}',
        '"status": RunStatus.RUNNING}',
        (f"{_COALESCE}::test_a_commit_renews_the_lease_and_begins_the_count_of_attempts_anew",),
    ),
    Mutant(
        "the new end of the lease in it",
        "I9",
        "agent_tasks/runs.py",
        "gone_on(seq, step, queue, self._lease_end())",
        "gone_on(seq, step, queue, self.ring_again())",
        (f"{_COALESCE}::test_a_commit_renews_the_lease_and_begins_the_count_of_attempts_anew[sqlite]",),
    ),
    Mutant(
        "the look for a commit that kept the lease, whose answer was lost",
        "I7",
        "agent_tasks/ending.py",
        "                return RunStatus.RUNNING\n        try:",
        "                return None\n        try:",
        (f"{_COALESCE}::test_a_commit_without_an_answer_is_found_and_the_message_goes_on[sqlite-each-after]",),
    ),
    Mutant(
        "the copy that a step of a shared message gets of the state",
        "I12",
        "agent_tasks/coalescing.py",
        "run, going.snapshot.state(), [], attempt.slot)",
        "run, attempt.state, [], attempt.slot)",
        (f"{_COALESCE}::test_a_step_gets_the_state_as_it_would_come_back_from_the_ledger",),
    ),
    Mutant(
        "the end of a message whose worker is told to stop",
        "I8",
        "agent_tasks/coalescing.py",
        " >= how.seconds or runtime.slots.stopping:",
        " >= how.seconds:",
        (f"{_COALESCE}::test_a_worker_that_is_told_to_stop_begins_no_more_steps_and_rings",),
    ),
    # -- MariaDB and MySQL
    Mutant(
        "the statement of a claim that waits for the row writes the lease's end on MariaDB",
        "I10",
        "agent_tasks/runs.py",
        "            self.find(connection, run_id, lock=True)\n            taken",
        "            taken",
        (f"{_MYSQL}::test_a_claim_that_waited_for_the_row_has_all_of_its_lease",),
    ),
    Mutant(
        "a transactional body goes on after MariaDB took its transaction back",
        "I5",
        "agent_tasks/transactional.py",
        "        if number_of(error) != NO_SAVEPOINT:\n            raise\n",
        "        return\n",
        (f"{_MYSQL}::test_a_body_that_catches_a_deadlock_and_goes_on_fails_as_a_whole",),
    ),
    Mutant(
        "a caller goes on after MariaDB took his transaction back",
        "I7",
        "agent_tasks/joining.py",
        "            self.connection.invalidate(error)",
        "            pass",
        (f"{_MYSQL}::test_a_deadlock_in_a_callers_transaction_ends_all_of_it[mysql-connection]",),
    ),
    Mutant(
        "a transaction goes on after a wait for a lock that was too long for MariaDB",
        "I7",
        "agent_tasks/troubles.py",
        "        return number in _LOCK_NUMBERS",
        "        return number == mysql.DEADLOCK",
        (f"{_MYSQL}::test_a_lost_wait_for_a_lock_undoes_the_whole_transaction_and_not_its_last_statement",),
    ),
    Mutant(
        "a row that MariaDB refuses is taken for a server that is away",
        "I9",
        "agent_tasks/boundary.py",
        "            if mysql.number_of(error) in mysql.OF_A_STATEMENT:\n                return\n",
        "",
        (f"{_BACKLOG}::test_a_row_that_cannot_be_handled_keeps_no_other[mysql-expire]",),
    ),
    Mutant(
        "a key that is there is not looked for before the insert that fails on it",
        "I9",
        "agent_tasks/enqueue.py",
        "    shares = joined is not None and not only_new and is_mysql(runtime.engine)\n",
        "    shares = False\n",
        (f"{_MYSQL}::test_a_caller_who_finds_a_run_keeps_nobody_from_keys_beside_its_own",),
    ),
    Mutant(
        "a connection by SQLAlchemy's other name is taken for one of another database",
        "I4",
        "checkpoint/columns.py",
        'MYSQL = frozenset({"mysql", "mariadb"})',
        'MYSQL = frozenset({"mysql"})',
        (f"{_MYSQL}::test_a_caller_who_reads_a_snapshot_finds_the_run_that_was_made_since[mariadb]",),
    ),
    # -- checkpoints in memory and in files
    Mutant(
        "a strict load falls back in silence",
        "I11",
        "checkpoint/falling_back.py",
        "        if strict:\n            raise refused\n",
        "",
        (f"{_FALLING_BACK}::test_a_failed_health_check_gives_the_one_before[file-False-its health check says no]",),
    ),
    Mutant(
        "what cannot be used is left without a warning",
        "I11",
        "checkpoint/falling_back.py",
        "                if newest is not None:\n",
        "                if False:\n",
        (
            f"{_FALLING_BACK}::test_a_damaged_head_gives_the_one_before_and_a_warning_that_names_both[file-cut off]",
            f"{_FALLING_BACK}::test_a_damaged_head_gives_the_one_before_and_a_warning_that_names_both[sqlite-cut off]",
        ),
    ),
    Mutant(
        "a message is taken whatever the chain says",
        "I11",
        "checkpoint/verifying.py",
        "        if message.position != len(items) or chain[-1] != message.link:",
        "        if False:",
        (f"{_RESEALING}::test_an_edited_message_is_not_resealed",),
    ),
    Mutant(
        "a checkpoint's file is taken whatever its checksum says",
        "I11",
        "checkpoint/file_shelf.py",
        "        if kept.checksum() != told:",
        "        if False:",
        (f"{_RESEALING}::test_an_edited_checkpoint_counts_as_damaged_until_it_is_resealed",),
    ),
    Mutant(
        "a checkpoint's file is taken for another run's",
        "I11",
        "checkpoint/file_shelf.py",
        "        if (kept.run_id, kept.line, kept.seq) != (self._run_id, line, seq):",
        "        if False:",
        (f"{_FILES}::test_the_files_of_one_run_are_no_other_runs",),
    ),
    Mutant(
        "a file is written over in its place",
        "I7",
        "checkpoint/disk.py",
        '    new = path.with_name(f"{path.name}.tmp")',
        "    new = path",
        (
            f"{_FILE_CRASHES}::test_a_process_that_is_killed_in_a_save_leaves_the_old_head_or_the_new_one[one more message]",
        ),
    ),
    Mutant(
        "what a dead process added to a log stays in it",
        "I7",
        "checkpoint/disk.py",
        "        os.ftruncate(descriptor, size)\n        os.lseek(descriptor, size, os.SEEK_SET)",
        "        os.lseek(descriptor, 0, os.SEEK_END)",
        (
            f"{_FILE_CRASHES}::test_a_process_that_is_killed_in_a_save_leaves_the_old_head_or_the_new_one[one more message]",
        ),
    ),
    Mutant(
        "a checkpoint that was never committed is found",
        "I7",
        "checkpoint/file_shelf.py",
        "        if head is None or not any(one.line == line and one.first <= seq <= one.last for one in head.lines):",
        "        if head is None or not (self._folder / checkpoint_name(line, seq)).exists():",
        (f"{_FILE_CRASHES}::test_a_line_that_was_cut_off_is_no_checkpoint_of_a_later_one",),
    ),
    Mutant(
        "an older head.json makes a save write over history",
        "I12",
        "checkpoint/file_shelf.py",
        "        if (self._folder / later).exists():",
        "        if False:",
        (f"{_FILES}::test_a_head_file_that_is_older_than_its_checkpoints_is_not_built_on",),
    ),
    Mutant(
        "processes save to one folder without a lock",
        "I2",
        "checkpoint/disk.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)\n",
        "",
        (f"{_STORES}::test_of_several_processes_that_append_the_same_seq_one_wins[file]",),
    ),
    Mutant(
        "a child goes on with its copy of a store in memory",
        "I1",
        "checkpoint/memory.py",
        "        if os.getpid() != self._pid:",
        "        if False:",
        (f"{_PROCESSES}::test_a_memory_store_is_refused_in_a_child_that_was_forked_since",),
    ),
]
