"""The loop: a model, the tools, and a transcript that is always valid.

config.py      AgentConfig: everything a host may set
loop.py        Agent: ask, carry out, record, until a reason to stop
transcript.py  what the model has seen, durable, and the messages it makes
valves.py      the reasons to stop a run that goes nowhere
compaction.py  where a long transcript may be cut, and what replaces the cut part
context.py     project notes, as untrusted context; the standing instructions
events.py      what a run tells its listeners, and its JSON
"""
