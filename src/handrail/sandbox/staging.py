"""How a call is staged here, and what it comes to.

::

    begin    take the moment; where there can be no overlay, read the small workspace that will be copied
    (run)    the cell writes to a layer above the workspace, or to a copy of it (``Stage.access``)
    effect   what the layer holds, as a ChangeSet beside the outcome; or why there can be none

Whether the kernel allows an overlay is found by trying: a cell that cannot have one says so before it runs anything
(:class:`~handrail.errors.OverlayRefused`). Then :meth:`Staging.instead` begins again on a copy, and it is remembered
for that workspace: another one may lie on another filesystem.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from anyio import to_thread

from handrail.changes.beneath import Seen
from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import Contents
from handrail.errors import ChangeConflict, ChangeError, OverlayRefused
from handrail.outcome import Reason, ToolOutcome
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.staging_copy import CopyLimit, read_copy, read_workspace
from handrail.sandbox.staging_layer import read_layer
from handrail.sandbox.staging_moment import Moment
from handrail.tool import Effect
from handrail.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Stage:
    """One call's stage: since when, and on what. ``before`` is what was copied; an overlay needs none.

    ``room`` is how many bytes the copy may take.
    """

    since: Moment
    access: Literal["stage", "copy"] = "stage"
    before: Mapping[bytes, Seen] | None = None
    room: int = 0

    def profile(self, profile: SandboxProfile) -> SandboxProfile:
        """``profile``, for this stage. One that does not stage stays as it is."""
        if profile.access != "stage" or self.access == "stage":
            return profile
        return profile.with_(access=self.access, copy_bytes=self.room)

    def changes(self, layer: int, workspace: int, contents: Contents) -> ChangeSet:
        """What the call changed; ``layer`` is the descriptor its result came with.

        Raises :class:`~handrail.errors.ChangeConflict` and :class:`~handrail.errors.ChangeError`.
        """
        if self.before is None:
            return read_layer(layer, workspace, contents, self.since)
        return read_copy(layer, workspace, self.before, contents, self.since)


class Staging:
    """How this host stages calls. Thread-safe: what it remembers is only ever added to.

    ``copy``: how large a workspace may be to be copied where there can be no overlay; ``None`` copies none.
    ``overlay``: whether to try an overlay at all.
    """

    def __init__(self, *, copy: CopyLimit | None = CopyLimit(), overlay: bool = True) -> None:  # noqa: B008 - frozen
        self._copy = copy
        self._overlay = overlay
        self._refused: dict[str, str] = {}

    async def begun(self, workspace: Workspace) -> Stage:
        """:meth:`begin`, in a thread where it has something to wait for."""
        at_once = Moment.at_once() if self._overlay and workspace.path not in self._refused else None
        return Stage(at_once) if at_once else await to_thread.run_sync(self.begin, workspace)

    def begin(self, workspace: Workspace) -> Stage:
        """The stage of a call that starts now.

        Raises :class:`~handrail.errors.ChangeError` where neither an overlay nor a copy can be had, with both reasons.
        """
        since = Moment.now()
        if self._overlay and workspace.path not in self._refused:
            return Stage(since)
        why = self._refused.get(workspace.path, "this host uses none")
        if self._copy is None:
            raise ChangeError(f"there can be no overlay here ({why}), and this host copies no workspace")
        try:
            before = read_workspace(workspace.fd, self._copy)
        except ChangeError as error:
            raise ChangeError(f"there can be no overlay here ({why}), and {error}") from None
        return Stage(since, "copy", before, self._copy.room)

    def instead(self, refusal: OverlayRefused, workspace: Workspace) -> Stage:
        """The stage of the same call after a cell could have no overlay: on a copy, as from now on."""
        self._refused[workspace.path] = str(refusal)
        return self.begin(workspace)


def staged_effect(outcome: ToolOutcome, stage: Stage, layer: int, workspace: int, contents: Contents | None) -> Effect:
    """The effect of a call that ran on a stage: its outcome with the changes, or the reason why there can be none.

    ``layer`` and ``workspace`` are directory descriptors. A call that did not succeed changes nothing.
    """
    if outcome.status != "ok":
        return Effect(outcome)
    if contents is None:
        return Effect(_refused(outcome, "This executor keeps no store for changes.", Reason.CANNOT_STAGE))
    try:
        return Effect(outcome, stage.changes(layer, workspace, contents))
    except ChangeConflict as error:
        return Effect(_refused(outcome, f"Conflict: {error}.", Reason.CONFLICT))
    except ChangeError as error:
        return Effect(_refused(outcome, f"The changes cannot be staged: {error}.", Reason.CANNOT_STAGE))


def _refused(outcome: ToolOutcome, text: str, reason: Reason) -> ToolOutcome:
    """The call ran, and its output may say more, but nothing of it becomes real."""
    return outcome.with_(status="error", text=f"{outcome.text}\n{text} Nothing was changed.".lstrip(), reason=reason)
