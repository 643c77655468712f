"""A contract for tool execution that any framework can be measured against. Imports nothing of ``handrail`` but in its
own adapter.

probes.py     the rows: what is tried, and what holding means
adapter.py    what a framework's adapter offers
adapters/     one file per framework, through its public names, with its strictest documented settings
child.py      the process that a crash probe kills
main.py       ``handrail-contract``: runs the matrix, prints a table or JSON
"""
