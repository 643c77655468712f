"""The stages of a call: ids that never meet, and a binding that changes with anything that an approval is about."""

import itertools
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from handrail.call import Approved, Checked, Origin, Proposed, Recorded, RegisteredTool, new_call_id
from handrail.schema import canonical_bytes, digest_of
from handrail.tool import Tool, ToolDef


def ids(count: int) -> list[str]:
    return [new_call_id() for _ in range(count)]


def test_an_id_is_a_uuid_of_version_7_as_rfc_9562_lays_it_out():
    for text in ids(500):
        made = uuid.UUID(text)
        assert (str(made), made.version, made.variant) == (text, 7, uuid.RFC_4122)


def test_an_id_begins_with_the_millisecond_it_was_made_in():
    before = time.time_ns() // 1_000_000
    made = [uuid.UUID(text).int >> 80 for text in ids(300)]
    after = time.time_ns() // 1_000_000
    assert made == sorted(made)
    assert before <= made[0]
    assert made[-1] <= after


def test_every_random_bit_of_an_id_varies_and_none_follows_another():
    drawn = [uuid.UUID(text).int for text in ids(2000)]
    random = [bit for bit in range(76) if bit not in (62, 63)]  # all but the moment, the version and the variant
    columns = [sum((number >> bit & 1) << row for row, number in enumerate(drawn)) for bit in random]
    every = (1 << len(drawn)) - 1
    for one, other in itertools.combinations(columns, 2):
        assert all(a & b for a in (one, every - one) for b in (other, every - other))


def test_no_id_shares_its_digits_with_another():
    tails = [text[-12:] for text in ids(500)]
    stretches = [tail[at : at + 10] for tail in tails for at in range(3)]
    assert len(set(stretches)) == len(stretches)


def test_threads_never_get_the_same_id():
    with ThreadPoolExecutor(8) as threads:
        drawn = [text for batch in threads.map(ids, [400] * 8) for text in batch]
    assert len(set(drawn)) == len(drawn)


FORKING = """
import os
from handrail.call import new_call_id
new_call_id()  # now there are halves drawn ahead, which a child must not use
for _ in range(2):
    if os.fork() == 0:
        break
else:
    os.wait(), os.wait()
os.write(1, "".join(new_call_id() + " " for _ in range(64)).encode())
"""


def test_a_forked_process_never_gives_the_ids_of_its_parent():
    said = subprocess.run([sys.executable, "-c", FORKING], check=True, capture_output=True, text=True).stdout
    halves = [text[14:] for text in said.split()]
    assert len(halves) == 3 * 64
    assert len(set(halves)) == len(halves)


# ── what an approval is bound to ─────────────────────────────────────────────────────────────────────────────────

PARAMETERS = {"type": "object"}


def checked(
    *,
    name: str = "pay",
    plugin: str = "host",
    description: str = "Pay.",
    handler=lambda args: "paid",
    arguments: dict | None = None,
    workspace: str = "/w",
    call_id: str = "c",
) -> Checked:
    tool = Tool(ToolDef(name, description, PARAMETERS), handler)
    registered = RegisteredTool(tool, f"{plugin}:{name}", name, "host")
    given = {"amount": 5} if arguments is None else arguments
    return Checked(Proposed(call_id, registered, given, Origin()), given, workspace)


def another(args):
    return "paid"


@pytest.mark.parametrize(
    "differing",
    [
        {"name": "pay2"},
        {"plugin": "other"},
        {"description": "Pay!"},
        {"handler": another},
        {"arguments": {"amount": 6}},
        {"arguments": {"amount": 5.5}},
        {"workspace": "/v"},
    ],
    ids=lambda differing: next(iter(differing)),
)
def test_a_binding_changes_with_everything_it_is_about(differing):
    assert checked(**differing).binding("p1") != checked().binding("p1")


def test_a_binding_changes_with_the_policy_and_with_nothing_else():
    assert checked().binding("p2") != checked().binding("p1")
    assert checked(call_id="d").binding("p1") == checked().binding("p1")


def test_what_is_bound_are_the_canonical_arguments_whatever_their_order():
    one, other = checked(arguments={"a": 1, "b": [2]}), checked(arguments={"b": [2], "a": 1})
    assert one.binding("p") == other.binding("p")
    assert one.arguments_bytes == other.arguments_bytes == canonical_bytes({"b": [2], "a": 1}) == b'{"a":1,"b":[2]}'


def test_a_binding_is_the_digest_of_one_object_that_stays_the_same_between_versions():
    """A question that waits is answered by another process, perhaps after an update."""
    call = checked()
    assert call.binding("p1") == digest_of(
        {
            "tool": "host:pay",
            "definition": call.registered.tool.definition.digest,
            "configuration": call.registered.configuration_digest,
            "arguments": {"amount": 5},
            "workspace": "/w",
            "policy": "p1",
        }
    )


def test_each_stage_leads_back_to_the_call():
    first = checked()
    recorded = Recorded(Approved(first, "before", "rule"), "key")
    assert recorded.checked is first
    assert recorded.call_id == "c"
    assert first.registered is first.proposed.registered
