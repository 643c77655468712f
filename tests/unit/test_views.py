"""What is printed of a run where nothing can be redrawn."""

import io
import time

import pytest
from rich.console import Console

from handrail.agent.events import CallStarted
from handrail.cli import views
from handrail.cli.views import SLOW_SECONDS, TextView


def test_a_slow_call_is_told_once_and_a_quick_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    screen = Console(file=out, width=200, highlight=False)
    view = TextView(screen, screen, live=False)
    view.show(CallStarted("1", "grep", "builtin:grep", "read_only", '{"pattern": "x"}'))
    view.tick()
    assert out.getvalue() == ""
    now[0] += SLOW_SECONDS + 0.1
    view.tick()
    view.tick()
    assert out.getvalue() == "… grep x (read_only) is running\n"
