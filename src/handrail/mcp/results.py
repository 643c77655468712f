"""What a server answered to ``tools/call`` → an outcome that says truthfully what is known. Pure."""

import json
from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types
from mcp import MCPError

from handrail.mcp.catalog import DEFAULT_MESSAGE_BYTES
from handrail.mcp.wire import TOO_LARGE_ANSWER, UNREADABLE_ANSWER
from handrail.outcome import Reason, ToolOutcome
from handrail.schema import Schema

# What the library says for itself, in words that no server chose, when an HTTP answer never came or says nothing.
_LIBRARY_LOST = ("Server returned an error response", "server answered a request with 202 Accepted")


def answer_of(message: Mapping[str, Any], *, modern: bool) -> types.CallToolResult | types.InputRequiredResult:
    """The result in a JSON-RPC answer. Raises :class:`mcp.MCPError` for an error, ``ValidationError`` for nonsense.

    ``modern``: since 2026-07-28 a result says what kind it is, and no kind but ours may be taken for a plain one.
    """
    error = message.get("error")
    if error is not None:
        raise MCPError.from_error_data(types.ErrorData.model_validate(error, by_name=False))
    result = message.get("result")
    kind = cast("Mapping[str, Any]", result).get("resultType") if modern and isinstance(result, Mapping) else None
    if kind == "input_required":
        return types.InputRequiredResult.model_validate(result, by_name=False)
    if kind not in (None, "complete"):
        raise MCPError(code=UNREADABLE_ANSWER, message="a result of an unknown kind")
    return types.CallToolResult.model_validate(result, by_name=False)


def outcome_of(result: types.CallToolResult, output: Schema | None) -> ToolOutcome:
    """The outcome of an answered call. A result that breaks ``output`` is completed and marked, never a retry."""
    blocks = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
    value = result.structured_content
    text = text_of(blocks, value)
    content = tuple(block for block in blocks if block.get("type") != "text")
    if result.is_error:
        return ToolOutcome.error(text or "The tool failed and gave no reason.", value=value, content=content)
    wrong = _broken(value, output, has_value="structured_content" in result.model_fields_set)
    outcome = ToolOutcome.ok(text, value=value, content=content)
    return outcome.with_broken_output(wrong) if wrong else outcome


def _broken(value: Any, output: Schema | None, *, has_value: bool) -> str:
    if output is None:
        return ""
    if not has_value:
        return "it has no structured content"
    if output.too_much(value, largest=DEFAULT_MESSAGE_BYTES):
        return "it cannot be checked: that would take too long"
    return "; ".join(output.errors(value, root="the result"))


def text_of(blocks: list[dict[str, Any]], value: Any) -> str:
    """What a model reads: the text blocks, a line for each other block, or the value where there is no block."""
    lines = [_line(block) for block in blocks]
    if not lines and value is not None:
        return json.dumps(value, ensure_ascii=False)
    return "\n".join(lines)


def _line(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        size = len(str(block.get("data", "")))
        return f"[{kind}: {block.get('mimeType', 'unknown type')}, {size} characters of base64]"
    if kind == "resource":
        return _resource_line(cast("Mapping[str, Any]", block.get("resource") or {}))
    if kind == "resource_link":
        return f"[resource link {block.get('name', '')}: {block.get('uri', '')}]"
    return f"[{kind} block]"


def _resource_line(resource: Mapping[str, Any]) -> str:
    if isinstance(resource.get("text"), str):
        return f"[resource {resource.get('uri', '')}]\n{resource['text']}"
    return f"[resource {resource.get('uri', '')}: {resource.get('mimeType', 'unknown type')}]"


def outcome_of_error(error: MCPError, server: str) -> ToolOutcome:
    """The outcome of a call that was sent and answered with an error, by the server or by the library for it."""
    code, message = error.error.code, error.error.message
    if code == UNREADABLE_ANSWER:
        return unreadable(f"the server's answer cannot be read: {message}")
    if code == TOO_LARGE_ANSWER:
        return unreadable(message, limited=True)
    if code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT) or message in _LIBRARY_LOST:
        return lost(server, message)
    if message.startswith("Unexpected content type"):
        return lost(server, message)
    if code == types.PARSE_ERROR and message.startswith("Failed to parse"):
        return unreadable(message.splitlines()[0])
    return ToolOutcome.error(f"The server refused the call ({code}): {message}")


def unreadable(why: str, *, limited: bool = False) -> ToolOutcome:
    """An answer came, so the call is over, but nobody can read what it says."""
    return ToolOutcome.error(
        f"The call completed, but {why}. It was not repeated.",
        Reason.OUTPUT_LIMIT if limited else Reason.INVALID_OUTPUT,
        limit="output" if limited else None,
        invalid_output=True,
    )


def lost(server: str, why: str) -> ToolOutcome:
    """The call was sent and no answer can come any more."""
    return ToolOutcome.unknown(
        f"The connection to {server} was lost after the call was sent ({why}). Its effect may have happened; "
        "it was not sent again.",
        Reason.CONNECTION_LOST,
    )
