"""The command line: one file per group of commands.

main.py     the table of commands; nothing is imported before it is needed
options.py  the options that several commands share, declared once
show.py     outcomes for people, and as JSON
"""
