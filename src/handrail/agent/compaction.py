"""Where a long transcript may be cut, and what is asked for the summary that replaces the cut part.

A cut stands before a prompt or an answer, never between a call and its result, and never behind the last
``keep`` answers. Nothing is removed from the transcript: the summary is one more record, and the journal and the file
keep what was cut. Where the model cannot summarise, the run goes on with what it has.
"""

from collections.abc import Sequence

from handrail.agent.conversation import messages_of, open_calls_of
from handrail.agent.transcript import Answered, Asked, Record, Summarised
from handrail.models.client import AssistantMessage, ModelRequest, ToolSpec, UserMessage

KEEP_ANSWERS = 4

SUMMARY_PROMPT = (
    "Stop working for a moment. Summarise this conversation so that you can go on with it and nothing else: what the "
    "person wants, in their words; what was done, with file names and results; what failed and why; what was refused "
    "and must not be tried again; what is left. Do not call tools."
)


def cut_before(records: Sequence[Record], keep: int = KEEP_ANSWERS) -> int | None:
    """The number of the first record to keep as it is; ``None`` where there is nothing worth cutting.

    A prompt right before the first kept answer is kept with it.
    """
    if open_calls_of(records):
        return None
    since = max((record.until for record in records if isinstance(record, Summarised)), default=0)
    answers = [index for index, record in enumerate(records) if isinstance(record, Answered) and index >= since]
    if len(answers) <= keep:
        return None
    cut = answers[-keep] if keep else len(records)
    earlier_answer = any(index < cut for index in answers)
    if cut and isinstance(records[cut - 1], Asked):
        cut -= 1
    return cut if earlier_answer and cut > since else None


def summary_request(records: Sequence[Record], system: str, cut: int, tools: tuple[ToolSpec, ...]) -> ModelRequest:
    """Ask the model to summarise what stands before the cut.

    ``tools`` are offered as in every turn, though none is to be called: a provider may refuse a history with calls in
    a request without tools, and its cache knows the request by how it begins.
    """
    messages = messages_of(records[:cut])
    shown = tuple(message for message in messages if not (isinstance(message, AssistantMessage) and _is_empty(message)))
    return ModelRequest(system, (*shown, UserMessage(SUMMARY_PROMPT)), tools)


def _is_empty(message: AssistantMessage) -> bool:
    return not message.text and not message.calls
