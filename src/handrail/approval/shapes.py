"""Shapes of commands that only read: programs, and for each the options known to do nothing but read.

An option that is not listed here is not allowed, however harmless; so ``-o``, ``--output``, ``-exec``,
``--upload-pack``, ``-c``, ``--ext-diff``, ``--textconv``, ``--open-files-in-pager``, abbreviated options (``--outp``)
and whatever a later version adds all mean: ask. Operands must stay at or below the current directory as written: no
absolute path, no ``..``.

What this does not promise: a repository's own configuration (``core.fsmonitor``, filters, a pager) can make git start
programs, and a link in the workspace can lead elsewhere. The walls of the cell hold those, not this list.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shape:
    """What one program may be called with.

    ``flags``: letters that may be clustered (``-la``). ``valued``: letters that take a value, attached or as the next
    word. ``attached``: letters whose value can only be attached (``-U5``): the next word is never theirs. ``apart``:
    whether the value of a ``valued`` letter is always the next word, as for ``tree``, where the ``o`` of ``-Lo`` is an
    option; then nothing may follow the letter. ``long``: long options without a value or with an optional ``=value``.
    ``long_valued``: long options with a value, as ``--name=value`` or ``--name value``. ``numeric``: whether ``-5`` is
    an option. ``operands``: the most operands allowed (``None``: any number). ``single_dash``: whole words such as
    ``-name`` and how many values follow (``find``). ``first``: if not empty, the first operand must be one of these,
    and no ``--`` may make a path of it (``git stash -- list`` writes).
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    numeric: bool = False
    operands: int | None = None
    single_dash: Mapping[str, int] = field(default_factory=dict[str, int])
    first: frozenset[str] = frozenset()
    attached: str = ""
    apart: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FIND = {
    **dict.fromkeys(
        _names("-print -print0 -depth -d -mount -xdev -daystart -empty -readable -writable -executable"), 0
    ),
    **dict.fromkeys(_names("-not -a -and -o -or -prune -true -false -ls -noleaf -nouser -nogroup"), 0),
    **dict.fromkeys(_names("-name -iname -path -ipath -wholename -regex -iregex -regextype -type -xtype -size"), 1),
    **dict.fromkeys(_names("-maxdepth -mindepth -mtime -mmin -ctime -cmin -atime -amin -perm -user -group -links"), 1),
}  # no -exec, -execdir, -ok, -okdir, -delete, -fprint, -fprint0, -fprintf, -fls, -newer, -samefile, -files0-from

LIST: Mapping[str, Shape] = {
    "ls": Shape(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1",
        "IwT",
        _names(
            "all almost-all author escape directory classify file-type full-time human-readable si inode kibibytes "
            "numeric-uid-gid literal no-group hide-control-chars quote-name reverse recursive size dereference "
            "group-directories-first context zero color"
        ),
        _names("block-size hide ignore indicator-style quoting-style sort time time-style tabsize width format"),
    ),
    "pwd": Shape("LP", operands=0),
    "cat": Shape("AbeEnstTuv", long=_names("show-all number-nonblank show-ends number squeeze-blank show-tabs")),
    "head": Shape("qvz", "nc", _names("quiet silent verbose zero-terminated"), _names("lines bytes"), numeric=True),
    "tail": Shape("qvz", "nc", _names("quiet silent verbose zero-terminated"), _names("lines bytes"), numeric=True),
    "wc": Shape("cmlLw", long=_names("bytes chars lines max-line-length words")),
    "stat": Shape("Lft", "c", _names("dereference file-system terse"), _names("format printf")),
    "file": Shape("bhikLNnr", long=_names("brief mime mime-type mime-encoding no-dereference dereference")),
    "du": Shape("abcDhHklLmPsSx0", "dt", _names("all bytes total human-readable summarize"), _names("max-depth")),
    "df": Shape("ahHiklPT", "t", _names("all human-readable inodes portability print-type local"), _names("type")),
    "tree": Shape("adfgilnNpqrstuvACDFJQSX", "LIP", _names("dirsfirst noreport du si prune gitignore"), apart=True),
    "basename": Shape("az", "s", _names("multiple zero"), _names("suffix")),
    "dirname": Shape("z", long=_names("zero")),
    "realpath": Shape("eELmPqsz", long=_names("canonicalize-existing canonicalize-missing logical physical quiet")),
    "readlink": Shape("efmnqsvz", long=_names("canonicalize canonicalize-existing canonicalize-missing no-newline")),
    "grep": Shape(
        "aEFGHhIiLlnoPqRrsTvwxyZcz",
        "ABCem",
        _names(
            "extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case invert-match "
            "word-regexp line-regexp count files-with-matches files-without-match only-matching quiet silent "
            "no-messages line-number with-filename no-filename recursive dereference-recursive text null color"
        ),
        _names("regexp after-context before-context context max-count include exclude exclude-dir binary-files"),
        numeric=True,
    ),
    "find": Shape(single_dash=_FIND),
    "diff": Shape(
        "abBcdeiNpqrstuwyZE",
        "CU",
        _names(
            "unified context brief recursive new-file ignore-case ignore-all-space side-by-side report-identical-files"
        ),
        _names("exclude width label"),
    ),
    "cmp": Shape("bls", "n", _names("print-bytes verbose quiet silent"), _names("bytes")),
    "cksum": Shape(),
    "md5sum": Shape("bt", long=_names("binary text tag")),
    "sha1sum": Shape("bt", long=_names("binary text tag")),
    "sha256sum": Shape("bt", long=_names("binary text tag")),
    "sort": Shape(
        "bcCdfghiMnRruVsz", "kt", _names("reverse numeric-sort unique ignore-case"), _names("key field-separator")
    ),
    "uniq": Shape("cdDiuz", "fsw", _names("count repeated unique ignore-case"), operands=1),
    "cut": Shape(
        "snz", "bcdf", _names("complement only-delimited"), _names("bytes characters delimiter fields output-delimiter")
    ),
    "nl": Shape("p", "bdfhilnsvw"),
    "whoami": Shape(operands=0),
    "id": Shape("Ggnruz", operands=0),
    "uname": Shape("asnrvmpio", operands=0),
    "date": Shape("uR", long=_names("utc universal iso-8601 rfc-email"), operands=0),
    "true": Shape(operands=0),
    "false": Shape(operands=0),
}

_DIFF_LONG = _names(
    "patch no-patch stat numstat shortstat dirstat summary name-only name-status raw minimal patience histogram "
    "cached staged color no-color color-words word-diff no-renames find-renames find-copies check full-index binary "
    "abbrev no-abbrev exit-code quiet ignore-space-at-eol ignore-space-change ignore-all-space ignore-blank-lines "
    "function-context text no-ext-diff no-textconv compact-summary pickaxe-all pickaxe-regex merge-base unified "
    "relative"
)
_DIFF_VALUED = _names("diff-filter diff-algorithm inter-hunk-context word-diff-regex")
_LOG_LONG = _DIFF_LONG | _names(
    "oneline graph decorate no-decorate all branches tags remotes merges no-merges first-parent reverse follow "
    "date-order topo-order author-date-order abbrev-commit no-abbrev-commit left-right cherry-pick cherry-mark "
    "boundary parents children source no-walk simplify-by-decoration full-history regexp-ignore-case all-match "
    "invert-grep extended-regexp fixed-strings perl-regexp clear-decorations relative-date no-notes pretty format"
)
_LOG_VALUED = _DIFF_VALUED | _names("max-count skip since after until before author committer grep date")
_SHOW = Shape("pusaRwbB", "nSGlL", _LOG_LONG, _LOG_VALUED, numeric=True, attached="UM")

GIT: Mapping[str, Shape] = {
    "status": Shape(
        "sbvuz",
        long=_names(
            "short branch verbose long show-stash ahead-behind no-ahead-behind renames no-renames porcelain column"
        )
        | _names("untracked-files ignored no-column"),
    ),
    "log": Shape("pusaRwbBgicEFP", "nSGLl", _LOG_LONG, _LOG_VALUED, numeric=True, attached="UM"),
    "show": _SHOW,
    "diff": Shape("pusaRwbBzW", "SGl", _DIFF_LONG, _DIFF_VALUED, attached="UM"),
    "shortlog": Shape("nsec", long=_names("numbered summary email committer all no-merges")),
    "blame": Shape(
        "bceflnpstw", "L", _names("porcelain line-porcelain show-email show-name show-number"), _names("since date")
    ),
    "rev-parse": Shape(
        long=_names(
            "short abbrev-ref verify show-toplevel show-prefix show-cdup git-dir is-inside-work-tree symbolic-full-name"
        )
        | _names(
            "is-bare-repository is-inside-git-dir quiet absolute-git-dir git-common-dir show-superproject-working-tree"
        )
    ),
    "rev-list": Shape("", "n", _LOG_LONG | _names("count objects"), _LOG_VALUED, numeric=True),
    "ls-files": Shape(
        "cdmostukzv",
        "x",
        _names(
            "cached deleted modified others stage unmerged killed full-name exclude-standard directory eol deduplicate"
        ),
        _names("exclude"),
    ),
    "ls-tree": Shape("drtlz", long=_names("long name-only name-status object-only full-name full-tree abbrev")),
    "cat-file": Shape("tspe"),
    "merge-base": Shape("a", long=_names("all octopus independent is-ancestor")),
    "describe": Shape(
        long=_names("all tags contains always long dirty first-parent exact-match abbrev"),
        long_valued=_names("match exclude candidates"),
    ),
    "name-rev": Shape(long=_names("tags all name-only always")),
    "for-each-ref": Shape(
        long=_names("ignore-case"),
        long_valued=_names("count sort format points-at merged no-merged contains no-contains"),
    ),
    "show-ref": Shape("ds", long=_names("head heads tags dereference hash abbrev quiet verify")),
    "check-ignore": Shape("vnq", long=_names("verbose non-matching quiet no-index")),
    "count-objects": Shape("vH", long=_names("verbose human-readable"), operands=0),
    "grep": Shape(
        "aEFGHhIiLlnoPqrvwcpW",
        "ABCem",
        _names(
            "cached untracked no-index text ignore-case word-regexp invert-match extended-regexp "
            "fixed-strings line-number"
        )
        | _names("files-with-matches name-only files-without-match count color no-color break heading show-function"),
        _names("max-depth context after-context before-context max-count"),
        numeric=True,
    ),
    # The rest write when given operands: only their listing forms are here.
    "branch": Shape(
        "alrv",
        long=_names("all list remotes verbose show-current no-color color no-column ignore-case"),
        long_valued=_names("sort format"),
        operands=0,
    ),
    "tag": Shape("ln", long=_names("list no-column ignore-case"), long_valued=_names("sort format"), operands=0),
    "remote": Shape("v", long=_names("verbose"), operands=0),
    "stash": Shape(operands=1, first=_names("list")),
    "worktree": Shape(long=_names("porcelain"), operands=1, first=_names("list")),
    "reflog": Shape("n", numeric=True, operands=1, first=_names("show")),
    "version": Shape(operands=0),
}

_GIT_GLOBAL = frozenset({"--no-pager", "--no-optional-locks", "-P", "--literal-pathspecs"})

SHAPES = ("git-read", "list-read")
VERSION = "shapes:v2"
_SIGNATURE = re.compile(r"%[-+ ]?G|signature")


def fits(shape: str, argv: tuple[str, ...]) -> str | None:
    """``None`` when ``argv`` has the shape; else the reason why not, in words.

    The program must be written bare (``git``, not ``/tmp/git``): what a path leads to is not known here.
    """
    if shape == "list-read":
        known = LIST.get(argv[0])
        return f"{argv[0]!r} is not a program of {shape}" if known is None else _misfit(known, argv[1:])
    if argv[0] != "git":
        return f"{argv[0]!r} is not a program of {shape}"
    rest = argv[1:]
    while rest and rest[0] in _GIT_GLOBAL:
        rest = rest[1:]
    if not rest:
        return "git is given no subcommand"
    command = GIT.get(rest[0])
    if command is None:
        return f"git {rest[0]!r} is not known to only read"
    if any(_SIGNATURE.search(word) for word in rest):
        return "a signature would be verified, which starts another program"
    return _misfit(command, rest[1:])


def _misfit(shape: Shape, words: tuple[str, ...]) -> str | None:
    operands: list[str] = []
    position, only_operands = 0, False
    while position < len(words):
        word = words[position]
        position += 1
        if only_operands or not word.startswith("-") or word == "-":
            operands.append(word)
        elif word == "--" and not shape.single_dash and not shape.first:  # find reads an expression even after it
            only_operands = True
        else:
            taken = _option(shape, word)
            if taken is None:
                return f"the option {word!r} is not known to only read"
            position += taken
    if position > len(words):
        return "the last option has no value"
    return _bad_operands(shape, operands)


def _option(shape: Shape, word: str) -> int | None:
    """How many of the following words are this option's values; ``None`` when it is not allowed."""
    if shape.single_dash:
        return shape.single_dash.get(word)
    if word.startswith("--"):
        name, equals, _ = word[2:].partition("=")
        if name in shape.long:
            return 0
        if name in shape.long_valued:
            return 0 if equals else 1
        return None
    if shape.numeric and word[1:].isdigit():
        return 0
    for index, letter in enumerate(word[1:], start=1):
        if letter in shape.attached:
            return 0
        if letter in shape.valued:
            if index + 1 == len(word):
                return 1
            return None if shape.apart else 0
        if letter not in shape.flags:
            return None
    return 0


def _bad_operands(shape: Shape, operands: list[str]) -> str | None:
    if shape.operands is not None and len(operands) > shape.operands:
        return f"{operands[-1]!r} is one operand too many"
    if shape.first and operands and operands[0] not in shape.first:
        return f"{operands[0]!r} is not known to only read"
    if shape.first and not operands and "list" in shape.first:
        return "without an operand it does more than list"
    for word in operands:
        if word.startswith(("/", ":/", ":(")) or ".." in word.split("/"):
            return f"{word!r} may lead outside the current directory"
    return None
