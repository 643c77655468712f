"""Cells: profile (what is allowed, as data), supervisor (the host side), zygotes, output, ending, report, staging."""
