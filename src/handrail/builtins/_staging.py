"""What the file tools need around a :class:`~handrail.changes.plan.Plan`: one for each job, and words for a model."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager

from handrail.builtins._text import explained, workspace_of
from handrail.changes.changeset import ChangeSet, FileState
from handrail.changes.plan import Plan
from handrail.errors import ChangeError, PathEscape, PathUnusable, ToolError
from handrail.outcome import ToolOutcome
from handrail.tool import Effect, Job


def plan_of(job: Job) -> Plan:
    """A new plan in the job's workspace. Raises :class:`ToolError` where the executor keeps no store."""
    workspace = workspace_of(job)
    if job.contents is None:
        raise ToolError("This executor keeps no store for changes, so no file can be changed.")
    return Plan(workspace, job.contents)


@contextmanager
def planning(name: str) -> Generator[None]:
    """Turn what a plan refuses into one sentence for the model."""
    with explained(name):
        try:
            yield
        except (PathEscape, PathUnusable, ChangeError) as error:
            raise ToolError(f"{error}; nothing was changed.") from None


def same_bytes(state: FileState | None, data: bytes) -> bool:
    """Whether ``state`` is a file that holds exactly ``data``."""
    return state is not None and state.sha256 == hashlib.sha256(data).hexdigest()


def staged(text: str, changes: ChangeSet = ChangeSet()) -> Effect:  # noqa: B008 - immutable
    """A success that is not real yet."""
    return Effect(ToolOutcome.ok(text), changes)
