"""Who decides about a call, and by which rules.

decision.py   the question and the answers; AlwaysApprove, NeverApprove, CallbackApprover
"""
