"""The execution record: the intent before the effect, the outcome before anybody reads it.

protocol.py   what the corridor asks of a journal; NoJournal
"""
