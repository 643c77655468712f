"""Everything Handrail raises for a human to fix. What the model should read is a ToolOutcome instead.

::

    HandrailError
    ├── ConfigurationError            the host wrote something that cannot work; the text says how to mend it
    │   ├── ToolDefinitionError       a ToolDef or a registration is refused
    │   │   └── NameCollision         two tools would meet under one model-facing name
    │   ├── PolicyError               a policy file is refused (file, line, column)
    │   ├── SkillError                a skill file is refused (file, line, column)
    │   └── CatalogError              an MCP catalog is refused
    ├── WorkspaceError                the workspace cannot be opened or used
    │   ├── PathEscape                a path leads outside the workspace
    │   ├── PathUnusable              a path is inside, but is not what the operation needs
    │   └── WriteRefused              a writing tool in a read-only context
    ├── SandboxError                  the walls, or the keeper of the cells, failed
    │   └── SandboxUnavailable        this machine cannot give the walls that were asked for
    │       └── OverlayRefused        the kernel lays no overlay over this workspace
    ├── ChangeError                   staged changes cannot be made, kept or undone
    │   ├── ChangeConflict            a file is no longer what the call saw
    │   └── UndoUnavailable           the private store no longer holds what an undo needs
    ├── JournalError                  the journal cannot be used
    │   ├── JournalCorrupt            damage elsewhere than in a torn tail; names the place
    │   ├── JournalPoisoned           a flush failed; this writer refuses to go on
    │   ├── CallBegunBefore           a call id was begun before and has no outcome yet
    │   └── StaleEpoch                another worker owns the call now; this result is evidence only
    ├── ModelError                    a model cannot be asked, or its answer cannot be used
    ├── TranscriptError               a run's transcript is damaged, locked or unknown
    ├── ApprovalError                 an answer cannot be accepted (unknown, late, answered before)
    ├── ServerUnavailable             an MCP server cannot be started or reached
    └── ToolError                     raised BY a handler: its text is what the model reads

Group by who mends it: a ConfigurationError is the host's file or code, a WorkspaceError is the directory,
a SandboxError is the machine, a JournalError is the store. A ToolError never leaves the corridor.
"""


class HandrailError(Exception):
    """Base of every exception that Handrail raises on purpose."""


class ConfigurationError(HandrailError):
    """Something the host wrote cannot work. The text says what, where, and how to mend it."""


class ToolDefinitionError(ConfigurationError):
    """A tool's definition or registration was refused; the text names the offending place."""


class NameCollision(ToolDefinitionError):
    """Two tools would be offered to the model under one name. Both are named in the text."""


class LocatedError(ConfigurationError):
    """A configuration error with a place in a file.

    ``line`` and ``column`` count from 1; ``None`` where the file as a whole is meant.
    """

    def __init__(self, message: str, *, file: str = "", line: int | None = None, column: int | None = None) -> None:
        place = ":".join(str(part) for part in (file, line, column) if part not in ("", None))
        super().__init__(f"{place}: {message}" if place else message)
        self.message = message
        self.file = file
        self.line = line
        self.column = column


class PolicyError(LocatedError):
    """A policy file was refused."""


class SkillError(LocatedError):
    """A skill file was refused."""


class CatalogError(LocatedError):
    """An MCP catalog was refused."""


class WorkspaceError(HandrailError):
    """The workspace cannot be opened or used."""


class PathEscape(WorkspaceError):
    """A path leads outside the workspace, or would, through a link."""


class PathUnusable(WorkspaceError):
    """A path lies inside the workspace but is not what the operation needs (a FIFO, a directory, missing)."""


class WriteRefused(WorkspaceError):
    """A tool that declares writes met a context in which nothing may be written."""


class SandboxError(HandrailError):
    """A cell, or the keeper of the cells, failed for a reason that is not the tool's."""


class SandboxUnavailable(SandboxError):
    """This machine cannot give the walls that were asked for. ``handrail doctor`` says how to mend it."""


class OverlayRefused(SandboxUnavailable):
    """The kernel lays no overlay over this workspace for us; the text is its reason. Nothing was run."""


class ChangeError(HandrailError):
    """Staged changes cannot be made, kept or undone."""


class ChangeConflict(ChangeError):
    """Files are no longer what the call saw; nothing was applied.

    ``paths`` are the conflicting paths relative to the workspace, as bytes.
    """

    def __init__(self, message: str, paths: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.paths = paths


class UndoUnavailable(ChangeError):
    """The private store no longer holds what this undo needs."""


class JournalError(HandrailError):
    """The journal cannot be used."""


class JournalCorrupt(JournalError):
    """A record was edited, removed, reordered or damaged. ``sequence`` names the first bad place."""

    def __init__(self, message: str, *, sequence: int | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence


class JournalPoisoned(JournalError):
    """A flush to disk failed once; nothing written after that could be trusted, so nothing is."""


class CallBegunBefore(JournalError):
    """This call id has an intent already, and no outcome: it may or may not have happened. It is not run again."""


class StaleEpoch(JournalError):
    """Another worker took the call over. The late result was kept as evidence and not applied."""


class ApprovalError(HandrailError):
    """An answer to an approval cannot be accepted; the text says why."""


class ModelError(HandrailError):
    """A model could not be asked, or its answer could not be used.

    ``received``: part of an answer had arrived. ``retryable``: the same request may succeed later. ``retry_after``: the
    seconds the provider asked for. ``status``: the HTTP status, where there was one.
    """

    def __init__(
        self,
        message: str,
        *,
        received: bool = False,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.received = received
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status


class TranscriptError(HandrailError):
    """A run's transcript is damaged, in use by another process, or unknown; the text names the file and place."""


class ServerUnavailable(HandrailError):
    """An MCP server cannot be started or reached; nothing was sent to it."""


class ToolError(HandrailError):
    """Raise this in a handler to fail the call with a text the model reads, without a traceback in the log."""
