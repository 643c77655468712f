"""The words that say who answers at a door, and the token it is opened with."""

from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from handrail import AlwaysApprove, Approver, NeverApprove
from handrail.approval.decision import Park, Reject
from handrail.cli import serve
from handrail.cli.serve import approver_of, serve_app
from handrail.errors import ConfigurationError
from handrail.mcp.approvals import ClientApprover


def decided(approver: Approver) -> Any:
    return anyio.run(approver.decide, None)


def test_a_question_waits_only_where_there_is_a_journal_to_keep_it() -> None:
    assert decided(approver_of("park", journal=True)) == Park()
    refused = decided(approver_of("park", journal=False))
    assert isinstance(refused, Reject)
    assert "no journal" in refused.why


def test_each_word_names_its_approver_and_no_other_word_does() -> None:
    kinds = {word: type(approver_of(word, journal=True)) for word in ("client", "always", "never")}
    assert kinds == {"client": ClientApprover, "always": AlwaysApprove, "never": NeverApprove}
    with pytest.raises(ConfigurationError, match="'yes' is not one of: client, park, always, never"):
        approver_of("yes", journal=True)


@pytest.mark.parametrize(
    ("token", "opens"), [(None, False), ("", False), ("fifteen-letters", False), ("sixteen-letters!", True)]
)
def test_a_token_that_is_missing_or_short_opens_no_door(
    token: str | None, opens: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    async def run_door(*given: Any, **options: Any) -> None:
        opened.append(options)

    monkeypatch.setattr(serve, "run_door", run_door)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("DOOR", raising=False)
    if token is not None:
        monkeypatch.setenv("DOOR", token)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    words = ["--workspace", str(workspace), "--http", "0", "--token-env", "DOOR", "--no-journal"]
    result = CliRunner().invoke(serve_app, words)
    assert len(opened) == opens
    assert (result.exception is None) is opens
    if not opens:
        assert isinstance(result.exception, ConfigurationError)
        assert "DOOR must hold a token of at least 16 characters" in str(result.exception)
