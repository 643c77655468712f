"""Recovery as a pure function: the evidence decides, and each difference blocks a replay with its own reason."""

from dataclasses import replace

import pytest

from handrail.journal.intent import Declaration, Intent
from handrail.journal.recovery import Block, Interrupted, blocked, plan

THEN = Declaration("host:t", "host", "safe", "t:v1", "sha256:d", "sha256:c", "sha256:e", staged=False)
INTENT = Intent("c", 2, THEN, {}, False, "c", "", 0, 0, "", "/w", {}, 1.0, 1.0)
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
