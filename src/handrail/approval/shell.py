"""One shell command line, read so strictly that what it says is certain, or not read at all.

Rules:

1. A line is *plain* when it is one simple command whose every word is literal: bash gives the program exactly the
   words returned here (a test asks bash). Only then may anything be allowed because of what the line says.
2. Everything else is :class:`Unclear`: operators, redirects, here-documents, every ``$`` expansion, backquotes,
   globs, braces, history, tildes that expand, comments, assignments before a command, keywords, functions, line
   breaks, tabs, characters that do not show, non-ASCII outside quotes, more than :data:`MAX_CHARACTERS` or
   :data:`MAX_WORDS`. Nothing is ever skipped because it is too long or too deep.
3. A *wrapper* is a program whose arguments are another command (``env``, ``xargs``, ``sh -c``, ``busybox`` …). What
   a wrapper would run is not looked at: it is never allowed by what it says, and never granted. An *interpreter*
   (``python``, ``make``, ``sed`` …) runs what its arguments or files say: it is allowed only word for word.
4. To forbid, the line is read loosely instead (:func:`loose_words`): quotes fall away, every operator ends a
   command, every word may be a program. That reading sees more commands than there are, never promises to see all
   of them: forbidding by name can be evaded, so nothing here relies on it.
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache

from handrail.hidden import is_hidden

MAX_CHARACTERS = 4_096
MAX_WORDS = 256


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


WRAPPERS = _words_of(
    """
    . ash at aws-vault bash batch builtin busybox bwrap capsh catchsegv chpst chroot chrt cmd command coproc cpulimit
    csh dash dbus-launch dbus-run-session direnv do doas docker doit dtach elvish env envdir eval exec expect
    fakechroot faketime fakeroot firejail fish flock gdb gosu hyperfine ifne ionice kubectl ksh ld.so linux32 linux64
    logsave ltrace mksh mosh nice nohup nsenter numactl osascript parallel pdksh perf pkexec podman powershell prlimit
    proot pwsh rbash reptyr rlwrap run-parts runcon runuser rush screen script setarch setpriv setsid sg sh softlimit
    source ssh ssh-agent sshpass start-stop-daemon stdbuf strace su sudo systemd-nspawn systemd-run taskset tcsh time
    timeout tini tmux toolbox torsocks toybox trap tsocks unbuffer unshare valgrind watch watchexec winpty wsl xargs
    xvfb-run zsh
    """
)
INTERPRETERS = _words_of(
    """
    awk bun bundle bunx cargo deno ed emacs ex gawk go gradle groovy ip java jshell julia just lua make mawk mvn nawk
    nc ncat netcat ninja node nodejs npm npx perl php pipx pnpm poetry python pypy r rake rscript rsync ruby scala scp
    sed socat sqlite3 swift tclsh uv uvx vi view vim vimdiff yarn
    """
)
KEYWORDS = _words_of(
    "if then else elif fi case esac for select while until do done in function time coproc { } ! [[ ]]"
)
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

_SAFE_BARE = r"A-Za-z0-9_\-./:=@%+,"
_WORD_PIECE = re.compile(
    rf"""(?P<bare>[{_SAFE_BARE}^]+ | (?<=[A-Za-z0-9^~])~)"""
    r"""| '(?P<single>[^']*)'"""
    r"""| "(?P<double>[^"$`\\!]*)" """
    r"""| \\(?P<escaped>[\ '"$`\\&|;<>()*?\[\]{}!\#~])""",
    re.VERBOSE,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\[[^\]]*\])?\+?=")
_WHAT = {
    "|": "an operator", "&": "an operator", ";": "an operator", "<": "a redirect or here-document", ">": "a redirect",
    "(": "a group or function", ")": "a group or function", "$": "an expansion", "`": "a command substitution",
    "*": "a pattern for file names", "?": "a pattern for file names", "[": "a pattern for file names",
    "]": "a pattern for file names", "{": "a brace expansion", "}": "a brace expansion", "~": "a home directory",
    "!": "a history expansion", "#": "a comment", "\n": "a line break", "\t": "a tab", "'": "an unfinished quote",
    "\\": "an escape",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plain:
    """One simple command of literal words."""

    argv: tuple[str, ...]

    @property
    def wrapper(self) -> str | None:
        """The wrapper that this command is, if it is one."""
        return wrapper_of(self.argv)


@dataclass(frozen=True, slots=True)
class Unclear:
    """A line that is not read. ``why`` says which part stopped the reading; ``limit``: it was too large."""

    why: str
    limit: bool = False


@lru_cache(maxsize=512)
def parse(line: str) -> Plain | Unclear:
    """Read one command line by rules 1 and 2."""
    if len(line) > MAX_CHARACTERS:
        return Unclear(f"it has {len(line)} characters; more than {MAX_CHARACTERS} are not read", limit=True)
    text = line.strip(" \n")
    if not text:
        return Unclear("it is empty")
    if not text.isascii() or not text.isprintable():
        hidden = next((character for character in text if is_hidden(character)), None)
        if hidden is not None:
            return Unclear(_hidden(hidden))
    words = _words(text)
    if isinstance(words, Unclear):
        return words
    argv = tuple(word for word, _ in words)
    bare_first = words[0][1]
    if bare_first and argv[0] in KEYWORDS:
        return Unclear(f"{argv[0]!r} is a keyword of the shell")
    if _ASSIGNMENT.match(argv[0]):
        return Unclear("it sets a variable before the command")
    if not argv[0]:
        return Unclear("the program has no name")
    return Plain(argv)


def _hidden(character: str) -> str:
    return f"it contains {_WHAT.get(character, f'the character U+{ord(character):04X}, which does not show')}"


def _words(text: str) -> list[tuple[str, bool]] | Unclear:
    """The words, each with whether it was written without any quoting."""
    words: list[tuple[str, bool]] = []
    position, end = 0, len(text)
    while position < end:
        if text[position] == " ":
            position += 1
            continue
        pieces: list[str] = []
        bare = True
        while position < end and text[position] != " ":
            piece = _WORD_PIECE.match(text, position)
            if piece is None:
                return Unclear(_stopped(text, position))
            pieces.append(piece[piece.lastgroup or 0])
            bare = bare and piece.lastgroup == "bare"
            position = piece.end()
        words.append(("".join(pieces), bare))
        if len(words) > MAX_WORDS:
            return Unclear(f"it has more than {MAX_WORDS} words", limit=True)
    return words


def _stopped(text: str, position: int) -> str:
    character = text[position]
    if character == '"':
        inside = re.search(r'[$`\\!"]', text[position + 1 :])
        if inside is not None and inside[0] != '"':
            return f"it contains {_WHAT[inside[0]]} in double quotes (at character {position + 2 + inside.start()})"
        return "it contains an unfinished quote"
    if not character.isascii():
        return f"it contains U+{ord(character):04X} outside quotes"
    return f"it contains {_WHAT.get(character, repr(character))} (at character {position + 1})"


def wrapper_of(argv: tuple[str, ...]) -> str | None:
    """The name of the wrapper that this argv starts, by the last part of its path, or ``None``.

    Versioned names count (``bash5.2``), and so does ``find`` with an action that runs something.
    """
    name = _program(argv, WRAPPERS)
    if name is None and os.path.basename(argv[0]).casefold() == "find" and not _FIND_RUNS.isdisjoint(argv):
        return "find -exec"
    return name


def interpreter_of(argv: tuple[str, ...]) -> str | None:
    """The name of the program that runs code which its arguments or files bring along, or ``None``."""
    return _program(argv, INTERPRETERS)


def _program(argv: tuple[str, ...], names: frozenset[str]) -> str | None:
    name = os.path.basename(argv[0]).casefold()
    stem = name.rstrip("0123456789.-") or name
    return name if name in names or stem in names else None


_LOOSE_BREAK = re.compile(r"[\s|&;<>(){}$`=,]+")
_LOOSE_QUOTING = re.compile(r"\\\n|['\"\\]")


def loose_words(line: str) -> list[str]:
    """Every word of the line that could be a program or an argument, in order (rule 4). Only for forbidding."""
    return [word for word in _LOOSE_BREAK.split(_LOOSE_QUOTING.sub("", line)) if word]
