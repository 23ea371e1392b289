"""The defences of the product, where they stand and which tests know of them (design §2).

Each is taken out by replacing a piece of text that stands exactly once in its file. The first edit
takes the defence out, the others its partner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLLOW = "gateway/services/follow.py"
HISTORY = "gateway/services/history.py"
APPEND = "common/bus/append.lua"
OPEN = "common/bus/open.lua"
RUN_SQL = "common/db/run_sql.py"
CHECKPOINT_SQL = "runner/checkpoint_sql.py"

FOLLOW_TESTS = "tests/integration/test_gateway_follow.py"
LOG_TESTS = "tests/integration/test_log.py"
PUBLISHER_TESTS = "tests/integration/test_publisher.py"
OWNER_TESTS = "tests/integration/test_ownership.py"
RUNNER_TESTS = "tests/integration/test_runner.py"
RESUME_TESTS = "tests/integration/test_gateway_resume.py"
RUN_TESTS = "tests/integration/test_db_runs.py"
MACHINE_TESTS = "tests/integration/test_db_machine.py"
SAVER_TESTS = "tests/integration/test_checkpointer.py"
REAPER_TESTS = "tests/integration/test_reaper.py"
EXPIRY_TESTS = "tests/integration/test_expiry.py"
POISON_TESTS = "tests/integration/test_poisoned_answers.py"
EFFECTS = "runner/effects.py"
LEDGER = "common/db/effects.py"
FENCE_TESTS = "tests/integration/test_effects_fence.py"
EFFECT_TESTS = "tests/integration/test_effect_questions.py"
LEASE_TESTS = "tests/faults/test_lease_faults.py"


class Stale(Exception):
    """The text that a mutant replaces is not there (once) any more."""


@dataclass(frozen=True, slots=True)
class Edit:
    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Raises Stale."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise Stale(f"{self.file} has this {text.count(self.old)} times: {self.old!r}")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Defence:
    name: str
    invariant: str
    what: str
    edits: Sequence[Edit]
    tests: Sequence[str]

    def take_out(self, root: Path) -> None:
        for edit in self.edits:
            edit.apply(root)


_NO_REREAD = Edit(
    FOLLOW,
    '            self._distrust(topic, "confirmed")',
    "            pass",
)

DEFENCES: tuple[Defence, ...] = (
    Defence(
        "confirmation",
        "I1",
        "a join waits for the server's confirmation before it reads the log",
        [
            Edit(FOLLOW, "            await self._confirmed(channel)\n", "            pass\n"),
            _NO_REREAD,
        ],
        [f"{FOLLOW_TESTS}::test_an_end_that_is_told_during_the_join_is_not_missed"],
    ),
    Defence(
        "reread",
        "I1",
        "every later confirmation makes followers read the log",
        [_NO_REREAD],
        [f"{FOLLOW_TESTS}::test_a_reconnect_is_healed_by_its_confirmation"],
    ),
    Defence(
        "position_check",
        "I6",
        "followed runs are compared with the archive at each heartbeat",
        [Edit(FOLLOW, '            self._distrust(topic, "position")', "            pass")],
        [f"{FOLLOW_TESTS}::test_a_lost_last_message_is_healed_by_the_position_check"],
    ),
    Defence(
        "probe",
        "I6",
        "a pub/sub connection on which probes do not come back is replaced",
        [
            Edit(
                "common/bus/fanout.py",
                "while self._missed < _MISSED_MAX:",
                "while True:",
            )
        ],
        ["tests/integration/test_fanout.py", "-k", "deaf"],
    ),
    Defence(
        "ring_gap",
        "I1",
        "a live batch that does not follow the ring empties it",
        [
            Edit(
                "gateway/services/ring.py",
                "if self._batches and not batch.takes(self._batches[-1].last):",
                "if False:",
            ),
            Edit(
                "gateway/services/ring.py",
                "                if not batch.takes(self.position):\n                    return\n",
                "",
            ),
        ],
        [f"{FOLLOW_TESTS}::test_a_lost_message_is_seen_by_the_next_one"],
    ),
    Defence(
        "take_rule",
        "I1",
        "a reader takes a batch only if it follows its cursor",
        [
            Edit(
                "common/batch.py",
                "return self.after <= cursor < self.last",
                "return cursor < self.last",
            )
        ],
        ["tests/unit/test_merge.py"],
    ),
    Defence(
        "cut",
        "I1",
        "of a batch that a reader has in part only the rest is sent",
        [Edit("common/batch.py", "min(cursor, self.last) - self.first + 1", "0")],
        ["tests/unit/test_merge.py"],
    ),
    Defence(
        "archive_fallback",
        "I1",
        "what Redis does not have is read from the archive",
        [
            Edit(
                HISTORY,
                "            batches = await archive.read(connection, run_id, after, count)\n",
                "            batches: list[Batch] = []\n",
            )
        ],
        [f"{FOLLOW_TESTS}::test_after_flushall_the_archive_serves"],
    ),
    Defence(
        "gone_is_refused",
        "I7",
        "history that is not kept is refused, not skipped",
        [
            Edit(
                HISTORY,
                '            raise Refused("HISTORY_EXPIRED", "events after this sequence are not'
                ' kept any more")',
                "            return []",
            ),
            Edit(
                "gateway/services/streams.py",
                "if not await follower.prime() and position < run.last_sequence:",
                "if not await follower.prime() and False:",
            ),
        ],
        ["tests/integration/test_gateway_events.py", "-k", "410"],
    ),
    Defence(
        "append_fence",
        "I3",
        "the append script refuses an older epoch",
        [
            Edit(
                APPEND,
                "if held and held > epoch then return {'FENCED', held} end",
                "if held and held > epoch then held = epoch end",
            )
        ],
        [LOG_TESTS, "-k", "older_owner"],
    ),
    Defence(
        "append_order",
        "I1",
        "the append script refuses what does not follow the top",
        [Edit(APPEND, "if after ~= top then return {'GAP', top} end", "")],
        [LOG_TESTS, "-k", "gap or retry or lost"],
    ),
    Defence(
        "append_twice",
        "I1",
        "a batch that is sent again is not appended again",
        [Edit(APPEND, "if last <= top then return {'OK', top} end", "")],
        [LOG_TESTS, "-k", "there_already or reply_that_was_lost"],
    ),
    Defence(
        "one_end",
        "I6",
        "nothing follows a terminal event",
        [Edit(APPEND, "if head[3] then return {'CLOSED', top} end", "")],
        [LOG_TESTS, "-k", "nothing_follows"],
    ),
    Defence(
        "open_fence",
        "I3",
        "an older epoch cannot open the log again",
        [
            Edit(
                OPEN,
                "if held and held > epoch then return {'FENCED', held} end",
                "if held and held > epoch then held = epoch end",
            )
        ],
        [LOG_TESTS, "-k", "older_epoch_is_fenced"],
    ),
    Defence(
        "proof",
        "I3",
        "a log is opened again only by whom Postgres still calls its owner",
        [
            Edit(
                "runner/sending.py",
                "            if outlet.needs_proof(self._fresh_s, self._log.identity):\n",
                "            if False:\n",
            )
        ],
        [PUBLISHER_TESTS, "-k", "stopped_by_postgres"],
    ),
    Defence(
        "tail",
        "I1",
        "a new owner archives the tail that only Redis has",
        [Edit("common/ownership.py", "        taken.append(batch)\n", "        pass\n")],
        [OWNER_TESTS, "-k", "tail_that_only_redis_has"],
    ),
    Defence(
        "jump",
        "I1",
        "after another Redis the numbers go on above all that were reserved",
        [
            Edit(
                "common/ownership.py",
                'trusted = answer == "OPEN" and former.identity == log.identity',
                "trusted = True",
            )
        ],
        [OWNER_TESTS, "-k", "jump"],
    ),
    Defence(
        "reserved_first",
        "I1",
        "numbers are reserved in Postgres before they are used",
        [
            Edit(
                "common/ownership.py",
                "max(top, former.reserved)",
                "max(top, former.archived)",
            )
        ],
        [OWNER_TESTS, "-k", "jump"],
    ),
    Defence(
        "persist_then_tell",
        "I2",
        "the events of a state are sent after its commit",
        [
            Edit(
                "runner/writer.py",
                "return [b for b in newest if b.last <= self.visible][::-1]",
                "return [*newest][::-1]",
            )
        ],
        ["tests/unit/test_writer.py", "-k", "not_sent_before"],
    ),
    Defence(
        "archive_fence",
        "I3",
        "the archive takes batches of the current owner only",
        [
            Edit(
                "common/db/archive.py",
                "WHERE id = :run AND epoch = :epoch {{running}}\n",
                "WHERE id = :run AND :epoch::int > 0 {{running}}\n",
            )
        ],
        [MACHINE_TESTS],
    ),
    Defence(
        "archive_by_one",
        "I6",
        "the archive of a run is written by one at a time",
        [
            Edit(
                CHECKPOINT_SQL,
                '_FENCE.replace("FOR SHARE", "FOR NO KEY UPDATE")',
                "_FENCE",
            ),
            Edit(
                "common/db/archive.py",
                "{{running}}\n               FOR NO KEY UPDATE),",
                "{{running}}\n               FOR SHARE),",
            ),
        ],
        [PUBLISHER_TESTS, "-k", "has_the_run_s_row_alone"],
    ),
    Defence(
        "row_fence",
        "I3",
        "the run's row is changed by its current owner only",
        [
            Edit(
                RUN_SQL,
                "_HELD = \"id = :id AND epoch = :epoch AND status = 'running'\"",
                "_HELD = \"id = :id AND :epoch::int > 0 AND status = 'running'\"",
            )
        ],
        [MACHINE_TESTS, f"{RUN_TESTS}::test_a_stale_epoch_changes_nothing"],
    ),
    Defence(
        "saver_fence",
        "I3",
        "checkpoints are written by the current owner only",
        [
            Edit(
                CHECKPOINT_SQL,
                "WHERE id = %(run)s AND epoch = %(epoch)s AND status = 'running' FOR SHARE)",
                "WHERE id = %(run)s AND %(epoch)s > 0 AND status = 'running' FOR SHARE)",
            )
        ],
        [SAVER_TESTS, "-k", "late_writes or uncommitted_claim or does_not_hold"],
    ),
    Defence(
        "saver_lock",
        "I3",
        "the saver's fence holds the row while it writes",
        [
            Edit(
                CHECKPOINT_SQL,
                "AND epoch = %(epoch)s AND status = 'running' FOR SHARE)",
                "AND epoch = %(epoch)s AND status = 'running')",
            )
        ],
        [SAVER_TESTS, "-k", "uncommitted_claim"],
    ),
    Defence(
        "saver_after_the_end",
        "I3",
        "no checkpoint is written after the run has left `running`",
        [
            Edit(
                CHECKPOINT_SQL,
                "AND epoch = %(epoch)s AND status = 'running' FOR SHARE)",
                "AND epoch = %(epoch)s FOR SHARE)",
            )
        ],
        [SAVER_TESTS, "-k", "does_not_hold"],
    ),
    Defence(
        "claim_skips_locked",
        "I3",
        "a run goes to one claimer",
        [
            Edit(
                RUN_SQL,
                "(SELECT count(*) FROM suspect)\n       FOR NO KEY UPDATE SKIP LOCKED),",
                "(SELECT count(*) FROM suspect)),",
            )
        ],
        ["tests/integration/test_db_runs.py", "-k", "claim"],
    ),
    Defence(
        "dead_runner_claims_nothing",
        "I3",
        "a runner that was declared dead is given no run",
        [
            Edit(
                RUN_SQL,
                "WHERE id = :runner AND dead_at IS NULL AND NOT draining",
                "WHERE id = :runner AND NOT draining",
            ),
            Edit(
                RUN_SQL,
                "                                         AND lease_until > clock_timestamp())",
                "                                         )",
            ),
        ],
        ["tests/integration/test_db_runs.py", MACHINE_TESTS, "-k", "claim or machine or runner"],
    ),
    Defence(
        "second_look",
        "I3",
        "a free lock counts from the second look on",
        [
            Edit(
                "common/db/runners.py",
                "OR (lost_at < clock_timestamp() - make_interval(secs => :grace)",
                "OR (make_interval(secs => :grace) IS NOT NULL",
            )
        ],
        [LEASE_TESTS, "-k", "terminated_again_and_again"],
    ),
    Defence(
        "local_deadline",
        "I3",
        "a runner that cannot renew stops by its own clock",
        [
            Edit(
                "runner/lease.py",
                "        return self.clock() >= max(self.deadline, self._first_renewal_by)",
                "        return False",
            )
        ],
        [LEASE_TESTS, "-k", "cut or cannot_renew or away"],
    ),
    Defence(
        "one_winner",
        "I4",
        "a question is decided once",
        [
            Edit(
                "common/db/interrupt_sql.py",
                " WHERE id = :id AND status = 'pending'\n   AND (:status",
                " WHERE id = :id\n   AND (:status",
            ),
        ],
        ["tests/integration/test_db_interrupts.py", RESUME_TESTS],
    ),
    Defence(
        "facts_at_the_decision",
        "I4",
        "facts that change while a guard is asked are compared again",
        [
            Edit(
                "common/db/interrupt_sql.py",
                ":facts_version::int IS NULL OR :facts_version::int = (\n"
                "        SELECT facts_version FROM conversations"
                " WHERE conversations.id = conversation_id))",
                ":facts_version::int IS NULL OR true)",
            )
        ],
        ["tests/integration/test_gateway_guard.py", "-k", "facts_that_change"],
    ),
    Defence(
        "time_at_the_decision",
        "I4",
        "a question that expires while a guard is asked is not decided",
        [
            Edit(
                "common/db/interrupt_sql.py",
                "(:status::text <> 'resolved' OR expires_at IS NULL OR",
                "(:status::text IS NOT NULL OR expires_at IS NULL OR",
            )
        ],
        ["tests/integration/test_gateway_guard.py", "-k", "expires_while"],
    ),
    Defence(
        "a_twin_looks_again",
        "I4",
        "a click that is refused gets the answer that its twin was given meanwhile",
        [
            Edit(
                "gateway/services/resume.py",
                "            if meanwhile is None:\n                raise\n",
                "            raise\n",
            )
        ],
        ["tests/integration/test_gateway_guard.py", "-k", "twins_answer"],
    ),
    Defence(
        "sent_until_taken",
        "I4",
        "a decision is sent until the durable state shows it taken",
        [
            Edit(
                "runner/answers.py",
                "return row.native_id not in state.pending",
                "return True",
            )
        ],
        [RUNNER_TESTS],
    ),
    Defence(
        "unusable_answers_are_dropped",
        "I6",
        "a step that failed does not keep the answers it failed with",
        [
            Edit(
                "runner/checkpointer.py",
                "        return [write for write in writes if write[0] != RESUME]",
                "        return writes",
            )
        ],
        [POISON_TESTS, "-k", "asked_again"],
    ),
    Defence(
        "expiry_by_one",
        "I4",
        "an expiry holds the run's row before it looks what is overdue",
        [
            Edit(
                "common/expiry.py",
                "    run = await runs.try_lock(connection, run_id)",
                "    run = await runs.find(connection, run_id)",
            )
        ],
        [EXPIRY_TESTS, "-k", "at_once or instant or locked"],
    ),
    Defence(
        "untaken_blocks_the_pause",
        "I4",
        "a run does not wait again before it has taken what was decided",
        [
            Edit(
                RUN_SQL,
                "WHERE {_HELD} AND cancel_requested IS NULL AND NOT EXISTS (\n"
                "       SELECT FROM interrupts i WHERE i.run_id = runs.id AND i.answer IS NOT NULL"
                " AND NOT i.taken\n          AND i.id <> ALL(:given::text[]))",
                "WHERE {_HELD}",
            )
        ],
        [MACHINE_TESTS, "tests/integration/test_db_runs.py"],
    ),
    Defence(
        "one_key_one_act",
        "I4",
        "a second request with the same key waits for the first",
        [
            Edit(
                "common/db/idempotency.py",
                "ON CONFLICT (user_id, key) DO NOTHING RETURNING 1",
                "ON CONFLICT (user_id, key) DO UPDATE SET key = EXCLUDED.key RETURNING 1",
            )
        ],
        ["tests/integration/test_db_lists.py", "-k", "second_request"],
    ),
    Defence(
        "finished_siblings",
        "I1",
        "what LangGraph announces again of finished steps is dropped",
        [
            Edit(
                "runner/translate.py",
                "self._finished = frozenset(finished)",
                "self._finished: frozenset[str] = frozenset()",
            )
        ],
        ["tests/unit/test_translate.py", "tests/unit/test_translate_recordings.py"],
    ),
    Defence(
        "ledger_fence",
        "I3",
        "the ledger of effects takes nothing from an older owner",
        [Edit(LEDGER, "AND epoch = :epoch AND status = 'running'", "AND :epoch::int > 0")],
        [FENCE_TESTS],
    ),
    Defence(
        "lease_before_effect",
        "I3",
        "the lease is looked at right before an effect is started",
        [Edit(EFFECTS, "not self._entered or not self._may_start():", "not self._entered:")],
        [FENCE_TESTS],
    ),
    Defence(
        "lease_at_effect_key",
        "I3",
        "an effect that asks for its key stops there where the run is lost",
        [Edit(EFFECTS, "if not self._may_go_on():", "if False:")],
        [FENCE_TESTS],
    ),
    Defence(
        "unknown_is_asked",
        "I5",
        "an intent of another start is not performed by guessing",
        [
            Edit(
                EFFECTS,
                "return effect.epoch == self._ledger.epoch and effect.key not in self._started",
                "return True",
            )
        ],
        [EFFECT_TESTS],
    ),
    Defence(
        "word_counts_once",
        "I5",
        "what a person has said of an effect is followed once",
        [
            Edit(
                LEDGER,
                "AND native_id = :native AND answer IS NOT NULL AND NOT taken",
                "AND native_id = :native AND answer IS NOT NULL",
            ),
            Edit(LEDGER, "   AND (EXISTS (SELECT FROM said) OR effects.epoch = :epoch)\n", ""),
        ],
        [EFFECT_TESTS],
    ),
    Defence(
        "held_until_stopped",
        "I5",
        "a node that waits no longer for an effect that is asked about does not go on",
        [Edit(EFFECTS, "                await self._hold(key)\n", "")],
        [EFFECT_TESTS],
    ),
)
