"""The tools that come with the house. They enter by the same door as a stranger's plugin.

read.py list.py find.py grep.py       look at the workspace; every path beneath its descriptor, memory bounded
write.py edit.py move.py delete.py mkdir.py   stage a change; the corridor shows it and makes it real
_text.py _tree.py _glob.py _staging.py        what they share

To add one: copy ``list.py``, add its ``TOOL`` here, and prove it with ``testing.check_tool``.
"""

from handrail.builtins import delete, edit, find, grep, list, mkdir, move, read, write  # noqa: A004 - a room is named for its tool
from handrail.tool import Plugin

BUILTIN_TOOLS = tuple(module.TOOL for module in (read, write, edit, list, find, grep, move, delete, mkdir))

BUILTIN_PLUGINS = (Plugin("builtin", BUILTIN_TOOLS, source="built in"),)
"""What ``--plugin`` selects from; each tool's canonical id is ``builtin:NAME``."""

__all__ = ["BUILTIN_PLUGINS", "BUILTIN_TOOLS"]
