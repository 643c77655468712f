"""The execution record: the intent before the effect, the outcome before anybody reads it.

::

    protocol.py   what the corridor asks of a journal; NoJournal
    records.py    a record's bytes and the chain of hashes, pure
    intent.py     a call's stage as plain data and back, pure
    outcomes.py   an outcome as plain data and back, pure
    secrets.py    which arguments are not stored, pure
    ledger.py     the rules: what may follow what, over a page of rows, pure
    writer.py     one thread, many callers, few commits
    leases.py     which process is alive
    sqlite.py     the embedded store
    stored.py     the journal over a store
"""
