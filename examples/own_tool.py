"""A tool of one's own: declared by its types and docstring, called through the whole corridor."""

import tempfile
from pathlib import Path

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry, tool


@tool(risk_level="read_only")
def count_words(path: Path, at_least: int = 1) -> str:
    """Count the words of a text file in the workspace.

    Args:
        path: the file
        at_least: count only words with at least this many letters
    """
    words = [word for word in path.read_text().split() if len(word) >= at_least]
    return f"{len(words)} words"


def main() -> None:
    registry = ToolRegistry()
    registry.register(count_words)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "poem.txt").write_text("a small boat on a very calm sea")
        with ToolExecutor(registry, workspace=directory, approver=AlwaysApprove()) as executor:
            print(executor.execute_sync("count_words", '{"path": "poem.txt", "at_least": 4}').text)
            print(executor.execute_sync("count_words", '{"path": "poem.txt", "at_least": "4"}').text)
            print(executor.execute_sync("count_words", '{"path": "../etc/passwd"}').text)


if __name__ == "__main__":
    main()
