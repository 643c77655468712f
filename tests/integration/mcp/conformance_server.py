"""Our server with the tools that the conformance suite calls. Usage: ``conformance_server.py``; prints its URL.

The suite cannot send a token, so a shim adds it: the token's own check is tested in ``test_http_door.py``.
"""

import asyncio
import json
import tempfile

import uvicorn

from handrail import AlwaysApprove, Job, Tool, ToolDef, ToolExecutor, ToolOutcome, ToolRegistry
from handrail.errors import ToolError
from handrail.mcp.approvals import ask_client
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


def form(**properties):
    """A form, all of whose fields are needed."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def asking(*questions, answer="Elicitation completed: action={action}, content={content}"):
    """A tool that asks one question after the other: pairs of a key and a form, each with its message."""

    async def run(arguments):
        given = None
        for key, message, schema in questions:
            given = await ask_client(message, schema, key=key)
        return answer.format(action=given.action, content=json.dumps(given.content), **(given.content or {}))

    return run


def optional(**properties):
    return {"type": "object", "properties": properties}


DEFAULTS = optional(
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
PLAIN, TITLED = ["option1", "option2", "option3"], [f"value{number}" for number in (1, 2, 3)]
TITLES = [{"const": value, "title": f"Choice {value}"} for value in TITLED]
ENUMS = optional(
    untitledSingle={"type": "string", "enum": PLAIN},
    titledSingle={"type": "string", "oneOf": TITLES},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    untitledMulti={"type": "array", "items": {"type": "string", "enum": PLAIN}},
    titledMulti={"type": "array", "items": {"anyOf": TITLES}},
)
NAME, YES = form(name={"type": "string"}), form(ok={"type": "boolean"})
COLOR = form(color={"type": "string"})
WHO = ("user_name", "What is your name?", NAME)

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
    "test_logging_tool": with_blocks("Nothing of ours logs to a client, with or without a level."),
    "test_elicitation": asking(("question", "Who are you?", optional(username={"type": "string"}))),
    "test_elicitation_sep1034_defaults": asking(("question", "Is this right?", DEFAULTS)),
    "test_elicitation_sep1330_enums": asking(("question", "Choose.", ENUMS)),
    "test_streaming_elicitation": asking(WHO),
    "test_input_required_result_elicitation": asking(WHO, answer="Hello, {name}!"),
    "test_input_required_result_request_state": asking(("confirm", "Please confirm", YES), answer="state-ok {ok}"),
    "test_input_required_result_tampered_state": asking(("confirm", "Please confirm", YES)),
    "test_input_required_result_multi_round": asking(
        ("step1", "Step 1: What is your name?", NAME), ("step2", "Step 2: What is your favorite color?", COLOR)
    ),
    "test_input_required_result_capabilities": asking(WHO),
}


# Tools whose schema is what the suite looks at.
SCHEMAS = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
}


def registered(name, handler, parameters=None):
    return Tool(ToolDef(name, f"For the conformance suite: {name}.", parameters or {"type": "object"}), handler)


def executor() -> ToolExecutor:
    registry = ToolRegistry()
    for name, handler in TOOLS.items():
        registry.register(registered(name, handler))
    for name, parameters in SCHEMAS.items():
        registry.register(registered(name, with_blocks("done"), parameters))
    return ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=tempfile.mkdtemp() + "/spill")


def with_token(app):
    async def shim(scope, receive, send):
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {TOKEN}".encode())]}
        await app(scope, receive, send)

    return shim


def changing(door: CorridorServer, runner: ToolExecutor):
    """A tool that adds another one, of which every client is told."""

    async def run(arguments):
        number = len(list(runner.registry))
        runner.registry.register(registered(f"added_{number}", with_blocks("I am new.")))
        await door.tools_changed()
        return "added"

    return run


async def main():
    runner = executor()
    door = CorridorServer(runner)
    runner.registry.register(registered("test_trigger_tool_change", changing(door, runner)))
    door.ready.set()
    with listening(0) as bound:
        port = bound.getsockname()[1]
        print(f"http://localhost:{port}/mcp", flush=True)
        app = with_token(guarded_app(door, token=TOKEN, port=port))
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[bound])


if __name__ == "__main__":
    asyncio.run(main())
