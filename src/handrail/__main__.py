"""``python -m handrail`` is the command line."""

from handrail.cli.main import run

if __name__ == "__main__":
    run()
