"""Recovery as a pure function: records become facts, the evidence decides, and each difference blocks a replay with its
own reason.
"""

from dataclasses import replace

import pytest

from handrail.errors import JournalCorrupt
from handrail.journal.intent import Declaration, Intent
from handrail.journal.records import Head, Record, encode, extended
from handrail.journal.recovery import Block, Interrupted, Step, blocked, happened, plan, understand
from handrail.outcome import Reason, ToolOutcome

THEN = Declaration("host:t", "host", "safe", "t:v1", "sha256:d", "sha256:c", "sha256:e", staged=False)
INTENT = Intent("c", 2, THEN, {}, False, "c", "", 0, 0, "", "/w", 1.0, 1.0)
CALL = Interrupted(INTENT)
DIFFERENCES = {
    Block.STRANGER: {"source": "plugin elsewhere"},
    Block.NO_LONGER_SAFE: {"replay": "never", "replay_key": None},
    Block.REPLAY_KEY: {"replay_key": "t:v2"},
    Block.DEFINITION: {"definition": "sha256:x"},
    Block.CONFIGURATION: {"configuration": "sha256:x"},
    Block.ENVIRONMENT: {"environment": "sha256:x"},
}


def planned(call: Interrupted, present: Declaration | None = THEN, reconcilable: tuple[str, ...] = ()):
    return plan(call, present, reconcilable=reconcilable, now=100.0)


def test_nothing_has_changed_so_a_safe_call_runs_again():
    assert blocked(CALL, THEN) is None
    assert planned(CALL).action == "replay"


@pytest.mark.promise("journal:replay:each-difference-blocks")
@pytest.mark.parametrize("block", DIFFERENCES)
def test_each_difference_blocks_with_its_own_reason(block):
    step = planned(CALL, replace(THEN, **DIFFERENCES[block]))
    assert (step.action, step.block) == ("settle", block)
    assert step.outcome is not None
    assert step.outcome.status == "unknown"
    assert "may or may not have happened; it was not run again" in step.outcome.text


@pytest.mark.promise("journal:replay:each-difference-blocks")
def test_the_reason_names_the_part_that_changed():
    then = replace(
        THEN, surroundings={"python": "3.11.7", "workspace": "/w"}, configuration_parts={"handler": "a", "limits": "b"}
    )
    call = replace(CALL, intent=replace(INTENT, declaration=then))
    elsewhere = replace(then, environment="sha256:x", surroundings={"python": "3.12.1", "workspace": "/w"})
    assert "the environment has changed: python was 3.11.7 and is 3.12.1" in planned(call, elsewhere).why
    other = replace(then, configuration="sha256:x", configuration_parts={"handler": "a", "limits": "c", "new": "d"})
    step = planned(call, other)
    assert "the tool's configuration has changed: limits, new" in step.why
    assert step.outcome is not None
    assert "limits, new" in step.outcome.text


@pytest.mark.promise("journal:replay:each-difference-blocks")
def test_a_gone_tool_secrets_and_too_many_attempts_block():
    assert blocked(CALL, None) is Block.TOOL_GONE
    assert blocked(replace(CALL, intent=replace(INTENT, has_secrets=True)), THEN) is Block.SECRETS
    assert blocked(replace(CALL, attempts=3), THEN) is Block.ATTEMPTS


def test_what_was_never_stays_never_even_if_the_tool_now_says_safe():
    never = replace(CALL, intent=replace(INTENT, declaration=replace(THEN, replay="never", replay_key=None)))
    assert planned(never).block is Block.NEVER
    assert planned(never, reconcilable=("host:t",)).action == "reconcile"


def test_staged_calls_are_decided_by_their_commit():
    staged = replace(THEN, replay="never", replay_key=None, staged=True)
    call = replace(CALL, intent=replace(INTENT, declaration=staged))
    assert planned(call).outcome.status == "error"
    assert "did not happen" in planned(call).outcome.text
    assert planned(replace(call, commit="begun")).action == "roll_forward"
    assert planned(replace(call, commit="ended")).outcome.status == "ok"
    assert planned(replace(call, held_by="a", expires_at=200.0)).action == "wait"
    assert planned(replace(call, held_by="a", expires_at=50.0)).action == "expire"
    assert planned(replace(call, held_by="a", expires_at=50.0, answered=True)).action == "wait"


HELD = replace(CALL, held_by="a1", expires_at=100.0)
STAGED = replace(CALL, intent=replace(INTENT, declaration=replace(THEN, staged=True)))
NEVER = replace(CALL, intent=replace(INTENT, declaration=replace(THEN, replay="never", replay_key=None)))
WAITS = "it ran staged, and the approval a1 is not used yet"
PLANS = {
    "answered and not used": (replace(HELD, answered=True), {}, Step(replace(HELD, answered=True), "wait", WAITS)),
    "answered, and open until within what is kept": (
        replace(HELD, answered=True),
        {"now": 300.0, "forgotten": 100.0},
        Step(replace(HELD, answered=True), "wait", WAITS),
    ),
    "answered and forgotten": (
        replace(HELD, answered=True),
        {"now": 300.0, "forgotten": 100.1},
        Step(
            replace(HELD, answered=True),
            "expire",
            "it was answered and then forgotten; its changes are dropped",
            ToolOutcome.error(
                "The changes of host:t were answered, and nobody went on with the call; they were dropped and nothing "
                "was changed.",
                Reason.APPROVAL_EXPIRED,
            ),
        ),
    ),
    "a question that may still be answered": (HELD, {"now": 99.9}, Step(HELD, "wait", WAITS)),
    "a question whose time is over": (
        HELD,
        {"now": 100.0},
        Step(
            HELD,
            "expire",
            "nobody answered in time; its changes are dropped",
            ToolOutcome.error(
                "Nobody approved the changes of host:t in time; they were dropped and nothing was changed.",
                Reason.APPROVAL_EXPIRED,
            ),
        ),
    ),
    "a commit that was begun": (
        replace(STAGED, commit="begun"),
        {},
        Step(replace(STAGED, commit="begun"), "roll_forward", "its commit was begun, so it is completed"),
    ),
    "a commit that was ended": (
        replace(STAGED, commit="ended"),
        {},
        Step(
            replace(STAGED, commit="ended"),
            "settle",
            "its commit was completed",
            ToolOutcome.ok(
                "host:t was interrupted after its changes were made: they are in the workspace. "
                "Its output was not kept."
            ),
        ),
    ),
    "a safe call on a host without tools": (
        CALL,
        {"present": None, "has_tools": False},
        Step(CALL, "wait", "it is declared safe; a host that has its tool can run it again"),
    ),
    "a call that must not run twice on a host without tools": (
        NEVER,
        {"present": None, "has_tools": False, "reconcilable": ("host:t",)},
        Step(
            NEVER,
            "reconcile",
            "the host can look; it is not run again: its declaration said that it must never run twice",
            block=Block.NEVER,
        ),
    ),
    "a safe call of which nothing changed": (
        CALL,
        {},
        Step(CALL, "replay", "it is declared safe, and nothing that it depends on has changed"),
    ),
    "a staged call that began no commit": (
        STAGED,
        {"present": None},
        Step(
            STAGED,
            "settle",
            "it was staged and never began its commit",
            ToolOutcome.error(
                "host:t was interrupted and did not happen: nothing was changed. It was not run again.",
                Reason.INTERRUPTED,
            ),
            Block.TOOL_GONE,
        ),
    ),
    "a call of which nobody can know": (
        NEVER,
        {},
        Step(
            NEVER,
            "settle",
            "nobody can know; it was not run again: its declaration said that it must never run twice",
            ToolOutcome.unknown(
                "host:t was interrupted. It may or may not have happened; it was not run again, because its "
                "declaration said that it must never run twice.",
                Reason.INTERRUPTED,
            ),
            Block.NEVER,
        ),
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_each_case_has_its_step_to_the_last_word(case):
    call, given, step = PLANS[case]
    assert plan(call, **{"present": THEN, "reconcilable": (), "now": 100.0, **given}) == step


def test_what_somebody_saw_happen_is_told_as_having_happened():
    assert happened("host:t") == ToolOutcome.ok(
        "host:t was interrupted, but it did happen. Its output was not kept; it was not run again."
    )


# ── from records to facts ────────────────────────────────────────────────────────────────────────────────────────

BEGUN = {
    "kind": "intent",
    "tool": "host:t",
    "declaration": {
        "source": "host",
        "replay": "safe",
        "replayKey": "t:v1",
        "definition": "sha256:d",
        "configuration": "sha256:c",
        "configuration_parts": {},
        "environment": "sha256:e",
        "staged": False,
    },
    "environment": {},
    "arguments": {},
    "has_secrets": False,
    "idempotency_key": "c",
    "origin": {"run_id": "", "step": 0, "tool_index": 0, "provider_call_id": ""},
    "workspace": "/w",
    "deadline": 1.0,
}
PARKED = {"kind": "parked", "approval_id": "a1", "expires_at": 200}
PARKED_AGAIN = {"kind": "parked", "approval_id": "a2", "expires_at": 300.5}
ANSWERED, ATTEMPT, CLAIMED = {"kind": "answered"}, {"kind": "attempt"}, {"kind": "claimed"}
COMMIT_BEGIN, COMMIT_END = {"kind": "commit_begin"}, {"kind": "commit_end"}

FACTS = {
    "begun": ([BEGUN], {}),
    "begun again, and again": ([BEGUN, ATTEMPT, ATTEMPT], {"attempts": 3}),
    "ran staged, and its question waits": ([BEGUN, PARKED], {"held_by": "a1", "expires_at": 200}),
    "ran staged, and was answered": (
        [BEGUN, PARKED, ANSWERED],
        {"held_by": "a1", "expires_at": 200, "answered": True},
    ),
    "asked about once more: the first answer is not an answer to it": (
        [BEGUN, PARKED, ANSWERED, PARKED_AGAIN],
        {"held_by": "a2", "expires_at": 300.5},
    ),
    "approved, and its commit begun: no question holds it": (
        [BEGUN, PARKED, ANSWERED, COMMIT_BEGIN],
        {"commit": "begun", "expires_at": 200, "answered": True},
    ),
    "its commit ended": ([BEGUN, COMMIT_BEGIN, COMMIT_END], {"commit": "ended"}),
    "begun again after it was asked about: what is known stays known": (
        [BEGUN, ATTEMPT, PARKED, CLAIMED],
        {"attempts": 2, "held_by": "a1", "expires_at": 200},
    ),
    "asked about before it was begun: that question holds nothing": ([PARKED, ANSWERED, BEGUN], {}),
}


def recorded(*bodies: dict[str, object]) -> list[Record]:
    """These bodies as the records of the call ``c``, from sequence 1 on."""
    head, records = Head(), []
    for body in bodies:
        records.append(extended(head, encode({"call_id": "c", "at": 1.0, **body})))
        head = Head(records[-1].sequence, records[-1].hash)
    return records


@pytest.mark.parametrize("case", FACTS)
def test_records_become_the_facts_that_count(case):
    bodies, facts = FACTS[case]
    intent = replace(INTENT, sequence=bodies.index(BEGUN) + 1)
    assert understand(recorded(*bodies)) == Interrupted(intent, **facts)


@pytest.mark.parametrize("end", ["settled", "refused"])
def test_a_call_that_has_an_end_is_never_taken_for_an_interrupted_one(end):
    with pytest.raises(JournalCorrupt, match=r"^the call c has no end by its state, and one by record 2$") as caught:
        understand(recorded(BEGUN, {"kind": end}))
    assert caught.value.sequence == 2


@pytest.mark.parametrize("bodies", [[], [ATTEMPT, PARKED, COMMIT_BEGIN]])
def test_records_without_an_intent_are_no_call(bodies):
    with pytest.raises(JournalCorrupt, match=r"^a call that is under way has no intent$"):
        understand(recorded(*bodies))


@pytest.mark.parametrize(
    "question",
    [
        {"kind": "parked", "expires_at": 200},
        {"kind": "parked", "approval_id": 1, "expires_at": 200},
        {"kind": "parked", "approval_id": "a1"},
        {"kind": "parked", "approval_id": "a1", "expires_at": "200"},
    ],
)
def test_a_question_that_names_no_approval_or_no_end_is_damage_and_expires_nothing(question):
    with pytest.raises(JournalCorrupt, match=r"^record 2 is not a question$") as caught:
        understand(recorded(BEGUN, question))
    assert caught.value.sequence == 2
