"""What wakes up inside the walls. Standard library only; imports nothing of ``handrail``.

wire.py        limits, reports and frames as plain data
zygote.py      warms up, freezes, forks one cell per request; start_zygote.py is what the host executes
contain.py     ORDER: the confinement steps, top to bottom, each returning what it enforced
namespaces.py  landlock.py  seccomp.py  limits.py   one mechanism each, with ``probe`` and ``apply``
_libc.py       raw system calls by number (x86-64, aarch64)
"""
