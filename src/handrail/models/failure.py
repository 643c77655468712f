"""What went wrong at a provider, as one kind of error. Both SDKs share their shape; neither is imported here."""

import datetime as dt
import email.utils
import time
from collections.abc import Mapping
from typing import Any, cast

from handrail.errors import ModelError

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Too early, too many, too busy, or lost on the way: the same request may succeed later."""

SHORTEST_SECRET = 8
"""A shorter key is a placeholder, and could be a part of any word."""


def model_error(error: Exception, name: str, *, received: bool, secret: str = "") -> ModelError:
    """An SDK's exception, or the transport's, as a :class:`ModelError`. One of ours is passed through.

    ``secret``: the key, which some servers repeat when they refuse it; the message goes to screens and records without.
    """
    if isinstance(error, ModelError):
        return error
    status = getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    headers: Mapping[str, str] = getattr(response, "headers", None) or {}
    if isinstance(status, int):
        return ModelError(
            f"{name}: HTTP {status}: {_message(error, secret)}",
            received=received,
            retryable=status in RETRYABLE_STATUS,
            retry_after=retry_after(headers, time.time()),
            status=status,
        )
    busy = _is_busy(getattr(error, "body", None))
    lost = "Connection" in type(error).__name__ or "Timeout" in type(error).__name__ or _is_transport(error)
    return ModelError(f"{name}: {_message(error, secret)}", received=received, retryable=busy or lost)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as a date (RFC 9110 section 10.2.3)."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "retry-after" not in headers:
            return None
        value = headers["retry-after"].strip()
        if value.replace(".", "", 1).isdigit():
            return float(value)
        when = email.utils.parsedate_to_datetime(value)
        return max(0.0, when.replace(tzinfo=when.tzinfo or dt.UTC).timestamp() - now)
    except ValueError:
        return None


def _is_transport(error: Exception) -> bool:
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _is_busy(body: Any) -> bool:
    """An error event inside a stream, before any answer: Anthropic sends ``overloaded_error`` that way."""
    inner: Any = cast("dict[str, Any]", body).get("error", body) if isinstance(body, dict) else None
    kind = cast("dict[str, Any]", inner).get("type") if isinstance(inner, dict) else None
    return kind in ("overloaded_error", "rate_limit_error", "api_error")


def _message(error: Exception, secret: str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if len(secret) >= SHORTEST_SECRET:
        text = text.replace(secret, "[key]")
    return text if len(text) <= 500 else text[:500] + "…"
