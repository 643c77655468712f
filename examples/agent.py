"""The smallest agent: a model (scripted here), the built-in tools, one workspace, and what came of it."""

import os
import tempfile
from pathlib import Path

from handrail import Agent, AgentConfig, AlwaysApprove
from handrail.builtins import BUILTIN_PLUGINS
from handrail.testing import ScriptedModel, call, calls


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_STATE_HOME"] = str(Path(directory, "state"))  # an example leaves nothing behind
        workspace = Path(directory, "work")
        workspace.mkdir()
        (workspace / "list.txt").write_text("milk\nbread\n")
        proposed = calls(call("read", {"path": "list.txt"}), call("read", {"path": "../secret"}))
        model = ScriptedModel([proposed, "Milk and bread."])
        agent = Agent(AgentConfig(workspace=workspace, model=model, approver=AlwaysApprove()), plugins=BUILTIN_PLUGINS)
        result = agent.run_sync("What is on my list?")
        print(result.stop.value, "-", result.text)


if __name__ == "__main__":
    main()
