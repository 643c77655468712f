"""Every number that a host may set is checked where it is given: which one, what came, what is allowed."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail.agent.config import AgentConfig
from handrail.agent.valves import Limits as RunLimits
from handrail.changes.store import ChangeStore
from handrail.errors import ConfigurationError
from handrail.executor import ToolExecutor
from handrail.inline import InlineToolExecutor
from handrail.journal.postgres import PostgresJournal
from handrail.mcp.catalog import ServerSpec
from handrail.models.anthropic import Anthropic
from handrail.models.openai_compatible import OpenAICompatible
from handrail.models.retry import RetryPolicy
from handrail.models.scripted import ScriptedModel
from handrail.registry import ToolRegistry
from handrail.sandbox.bodies import CellBody, Cells
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.staging_copy import CopyLimit
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.tool import Capability, ToolDef
from handrail.workspace import Workspace
from handrail_cell.wire import Limits

HUGE = 10**5_000
NO_TIME: list[Any] = [0, -1, -0.5, math.nan, math.inf, True, "5", 1e12, HUGE]
NO_TIME_OR_NONE: list[Any] = [-1, math.nan, math.inf, True, "5", None, 1e12]
NO_COUNT: list[Any] = [0, -1, 1.5, 2.0, math.nan, math.inf, True, "5", 2**53, HUGE]
NO_COUNT_OR_NONE: list[Any] = [-1, 1.5, math.nan, True, "5", None, 2**53, HUGE]


def a_store(**numbers: Any) -> object:
    with Workspace("/tmp") as workspace:
        return ChangeStore("/nowhere/at/all", workspace, **numbers)


def a_cell_body(**numbers: Any) -> object:
    return CellBody(
        Cells(Supervisor()),
        lambda job: InlineCode("", "tool.py", b""),
        capability=Capability(),
        limits=Limits(**numbers),
    )


DOORS: dict[str, Callable[..., object]] = {
    "Limits of a profile": lambda **numbers: SandboxProfile(limits=Limits(**numbers)),
    "Limits of a profile's copy": lambda **numbers: SandboxProfile().with_(limits=Limits().with_(**numbers)),
    "Limits of inline tools": lambda **numbers: InlineToolExecutor(limits=Limits(**numbers)),
    "Limits of a body": a_cell_body,
    "SandboxProfile": SandboxProfile,
    "InlineToolExecutor": InlineToolExecutor,
    "Supervisor": Supervisor,
    "CopyLimit": CopyLimit,
    "ToolExecutor": lambda **numbers: ToolExecutor(ToolRegistry(), **numbers),
    "ToolDef": lambda **numbers: ToolDef("look", **numbers),
    "agent Limits": RunLimits,
    "AgentConfig": lambda **numbers: AgentConfig(model=ScriptedModel([]), **numbers),
    "RetryPolicy": RetryPolicy,
    "ChangeStore": a_store,
    "PostgresJournal": lambda **numbers: PostgresJournal("host=nowhere.invalid", **numbers),
    "OpenAICompatible": lambda **numbers: OpenAICompatible("m", **numbers),
    "Anthropic": lambda **numbers: Anthropic("m", **numbers),
    "ServerSpec": lambda **numbers: ServerSpec(name="s", command=("x",), **numbers),
}
CELL_TIMES, CELL_COUNTS = (
    ("wall_s", "cpu_s"),
    ("memory_bytes", "disk_bytes", "file_bytes", "output_bytes", "processes", "open_files"),
)
RUN_COUNTS = ("turns", "errors", "consecutive_errors", "identical_failures", "cycles", "tokens")
SETTINGS: list[tuple[str, tuple[str, ...], list[Any]]] = [
    *((door, CELL_TIMES, NO_TIME) for door in DOORS if door.startswith("Limits of")),
    *((door, CELL_COUNTS, NO_COUNT) for door in DOORS if door.startswith("Limits of")),
    ("SandboxProfile", ("copy_bytes",), NO_COUNT_OR_NONE),
    ("CopyLimit", ("bytes", "names"), NO_COUNT_OR_NONE),
    ("InlineToolExecutor", ("max_runtime_seconds",), NO_TIME),
    ("InlineToolExecutor", ("max_output_bytes",), NO_COUNT),
    ("Supervisor", ("pool_size", "pool_most"), [*NO_COUNT_OR_NONE, 10_000]),
    ("ToolExecutor", ("timeout", "approval_ttl"), NO_TIME),
    ("ToolExecutor", ("max_output_bytes", "max_parallel"), NO_COUNT),
    ("ToolDef", ("timeout",), NO_TIME),
    ("agent Limits", RUN_COUNTS, NO_COUNT),
    ("agent Limits", ("seconds",), NO_TIME),
    ("AgentConfig", ("timeout",), NO_TIME),
    ("AgentConfig", ("context_tokens", "max_output_tokens"), NO_COUNT),
    ("RetryPolicy", ("attempts",), [*NO_COUNT, 10_000]),
    ("RetryPolicy", ("base", "max_wait"), NO_TIME_OR_NONE),
    ("ChangeStore", ("max_bytes",), NO_COUNT),
    ("ChangeStore", ("max_age",), NO_TIME),
    ("PostgresJournal", ("lease_seconds",), NO_TIME),
    ("OpenAICompatible", ("timeout",), NO_TIME),
    ("Anthropic", ("timeout",), NO_TIME),
    ("ServerSpec", ("timeout", "start_timeout"), NO_TIME),
    ("ServerSpec", ("max_message_bytes", "memory_bytes", "processes", "cpu_s"), NO_COUNT),
]


@pytest.mark.parametrize(
    ("door", "name", "values"),
    [(door, name, values) for door, names, values in SETTINGS for name in names],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_that_cannot_work_is_refused_by_name_where_it_is_given(door: str, name: str, values: list[Any]):
    for value in values:
        with pytest.raises(ConfigurationError) as refused:
            DOORS[door](**{name: value})
        sentence = str(refused.value)
        came = f"a number of {5_001} digits" if value is HUGE else repr(value)
        assert f"{name} must be a " in sentence, sentence
        assert sentence.endswith(f", not {came}"), sentence
        assert " to " in sentence or "at most" in sentence, sentence


def test_the_largest_numbers_that_are_taken_work(tmp_path: Path):
    largest = Limits(
        wall_s=1e9,
        cpu_s=1e9,
        memory_bytes=2**50,
        processes=2**22,
        disk_bytes=2**50,
        file_bytes=2**50,
        open_files=2**20,
        output_bytes=2**50,
    )
    with Supervisor(pool_size=0) as supervisor:
        for program in (False, True):
            profile = SandboxProfile(workspace=str(tmp_path), access="stage", exec=program, limits=largest)
            result = supervisor.run_sync(InlineCode("result = 1", "tool.py", b"{}"), profile)
            assert (result.limit, result.value) == (None, b"1"), result
    assert RetryPolicy(attempts=1_000, base=1e9, max_wait=1e9)


def test_a_retry_may_wait_for_no_time_at_all():
    assert RetryPolicy(base=0, max_wait=0).attempts == 4
