"""Our client role for the conformance suite: list the server's tools and call them through the corridor.

Usage: ``conformance_client.py URL``; the suite names the scenario and its calls in the environment.
"""

import asyncio
import json
import os
import sys
import tempfile

from handrail import AlwaysApprove, CallbackApprover, Modify, ToolExecutor, ToolRegistry
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.client import opened
from handrail.mcp.joining import register_servers
from handrail.mcp.launch import RefusingLauncher
from handrail.mcp.pins import PinStore

EXAMPLES = {"string": "test", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def example(schema):
    """The simplest arguments that a tool's schema asks for."""
    properties = schema.get("properties", {})
    if {"a", "b"} <= properties.keys():
        return {"a": 5, "b": 3}
    return {name: EXAMPLES.get(properties.get(name, {}).get("type"), "test") for name in schema.get("required", [])}


def answer(request):
    """Yes to whatever the server asks, with a value for each field."""
    return Modify({name: True if value is None else value for name, value in request.arguments.items()})


async def main():
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as state:
        spec = ServerSpec(name="suite", url=sys.argv[-1], timeout=20.0)
        pins = PinStore(os.path.join(state, "private", "pins.json"))
        approver = CallbackApprover(answer)
        async with opened([spec], launcher=RefusingLauncher("no walls here"), pins=pins, approver=approver) as servers:
            registry = ToolRegistry()
            register_servers(registry, servers)
            executor = ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=os.path.join(state, "spill"))
            calls = context.get("toolCalls") or [
                {"name": item.tool.name, "arguments": example(item.tool.parameters)} for item in registry
            ]
            for call in calls:
                outcome = await executor.execute(f"mcp:suite/{call['name']}", call["arguments"])
                print(call["name"], outcome.status, outcome.text[:200])


asyncio.run(main())
