"""Our server with the tools that the conformance suite calls. Usage: ``conformance_server.py``; prints its URL.

The suite cannot send a token, so a shim adds it: the token's own check is tested in ``test_http_door.py``.
"""

import asyncio
import tempfile

import uvicorn

from handrail import AlwaysApprove, Job, Tool, ToolDef, ToolExecutor, ToolOutcome, ToolRegistry
from handrail.errors import ToolError
from handrail.mcp.http import guarded_app, listening
from handrail.mcp.server import CorridorServer

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
TOKEN = "conformance-token-of-the-tests"


def image():
    return {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def resource(uri, mime, text):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}}


def with_blocks(text, *blocks):
    async def run(arguments):
        return ToolOutcome.ok(text, content=blocks)

    return run


async def progress(arguments, job: Job):
    for step in (0, 50, 100):
        job.on_progress(step, 100, f"Completed step {step} of 100")
    return "done"


async def fail(arguments):
    raise ToolError("This tool intentionally returns an error for testing")


TOOLS = {
    "test_simple_text": with_blocks("This is a simple text response for testing."),
    "test_image_content": with_blocks("[image]", image()),
    "test_audio_content": with_blocks("[audio]", {"type": "audio", "data": SOUND, "mimeType": "audio/wav"}),
    "test_embedded_resource": with_blocks("[resource]", resource("test://embedded", "text/plain", "Embedded.")),
    "test_multiple_content_types": with_blocks(
        "Multiple content types test:", image(), resource("test://mixed", "application/json", '{"test":"data"}')
    ),
    "test_tool_with_progress": progress,
    "test_error_handling": fail,
}


def executor() -> ToolExecutor:
    registry = ToolRegistry()
    for name, handler in TOOLS.items():
        registry.register(Tool(ToolDef(name, f"For the conformance suite: {name}."), handler))
    return ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=tempfile.mkdtemp() + "/spill")


def with_token(app):
    async def shim(scope, receive, send):
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {TOKEN}".encode())]}
        await app(scope, receive, send)

    return shim


async def main():
    door = CorridorServer(executor(), ask_client=False)
    door.ready.set()
    with listening(0) as bound:
        port = bound.getsockname()[1]
        print(f"http://localhost:{port}/mcp", flush=True)
        app = with_token(guarded_app(door, token=TOKEN, port=port))
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[bound])


if __name__ == "__main__":
    asyncio.run(main())
