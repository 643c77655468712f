"""Who decides about a call, and by which rules.

decision.py     the question and the answers; AlwaysApprove, NeverApprove, CallbackApprover
policy.py       the protocol of a policy, and the risk table that stands when there is no other
rules.py        compiled rules, pure; policy_file.py reads them from TOML; review.py looks for mistakes in them
shell.py        one command line read strictly or not at all; shapes.py: commands that only read
grants.py       what a lasting yes may cover
chain.py        several approvers, one after the other
question.py     a question as lines, pure; console.py asks it of a person at the terminal
inbox.py        questions that wait in the journal          render.py    untrusted text made fit for a screen
"""
