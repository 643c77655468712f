"""Ask again, only where asking had no effect.

1. A request is repeated only if its error says ``retryable`` and nothing of an answer was received.
2. At most ``attempts`` requests in all. The provider's ``retry-after`` is honoured; where it is longer than
   ``max_wait`` the error is raised at once instead, so that nobody waits in silence for an hour.
3. Without one, the wait doubles from ``base`` up to ``max_wait``, with jitter, so that many clients spread out.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from handrail.bounds import require_seconds, require_whole
from handrail.errors import ModelError
from handrail.models.client import ModelClient, ModelEvent, ModelRequest, as_utf8

MOST_ATTEMPTS = 1_000
"""The wait doubles each time, and doubled oftener than that it is no number any more."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long. Times in seconds; 0 waits for nothing.

    Raises :class:`~handrail.errors.ConfigurationError` for a number that cannot work.
    """

    attempts: int = 4
    base: float = 0.5
    max_wait: float = 60.0

    def __post_init__(self) -> None:
        require_whole("attempts", self.attempts, most=MOST_ATTEMPTS)
        require_seconds("base", self.base, zero=True)
        require_seconds("max_wait", self.max_wait, zero=True)

    def wait_before(self, attempt: int, error: ModelError, jitter: float) -> float | None:
        """Seconds to wait before request number ``attempt`` (2 is the first repetition); ``None``: do not repeat.

        ``jitter`` is a number in [0, 1).
        """
        if error.received or not error.retryable or attempt > self.attempts:
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_wait else None
        return min(self.max_wait, self.base * 2 ** (attempt - 2)) * (0.5 + jitter / 2)


async def stream_with_retries(
    client: ModelClient,
    request: ModelRequest,
    policy: RetryPolicy,
    *,
    on_retry: Callable[[float, ModelError], None],
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> AsyncGenerator[ModelEvent, None]:
    """``client.stream(request)`` under ``policy``. ``on_retry`` hears the wait in seconds and the error, before it."""
    attempt = 1
    while True:
        try:
            async with aclosing(client.stream(request)) as answer:
                async for event in answer:
                    yield as_utf8(event)
            return
        except ModelError as error:
            attempt += 1
            wait = policy.wait_before(attempt, error, random.random())  # noqa: S311 - spreads load, guards nothing
            if wait is None:
                raise
            on_retry(wait, error)
        await sleep(wait)
