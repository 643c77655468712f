"""Named places where a process may die, so that a test can kill it at each of them in turn.

Silent unless :func:`arm` was called in this process; nothing outside the process (no variable, no file) can arm it.
"""

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Say that ``name`` is about to be passed."""
    if _hook is not None:
        _hook(name)


def arm(hook: Callable[[str], None] | None) -> None:
    """Call ``hook`` with every name from now on; ``None`` silences it again."""
    global _hook  # noqa: PLW0603 - one hook for the whole process is what a test of process death needs
    _hook = hook
