"""Policy files: what a file may say, what it may not, to the last word, and where it may lie."""

import os
from pathlib import Path

import pytest

from handrail.approval.policy_file import MAX_FILE_BYTES, MAX_RULES, default_policy_path, load_policy, parse_policy
from handrail.approval.rules import Beneath, CommandLike, OneOf, Pattern, Rule
from handrail.approval.shapes import SHAPES
from handrail.errors import PolicyError
from handrail.tool import RiskLevel

RULE = 'version = 1\n[[rule]]\ntool = "t"\ndecision = "ask"\n'  # what follows stands in line 5
ALLOW = RULE.replace("ask", "allow")


def refused(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, file="/etc/p.toml")
    assert caught.value.file == "/etc/p.toml"
    return caught.value


# ── what a rule says ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_key_of_a_rule_is_read() -> None:
    text = """
        version = 1
        [[rule]]
        name = "mine"
        glob = "mcp:x/*"
        decision = "allow"
        review = "changes"
        justification = "drafts are mine to lose"
        grant = false
        risk = ["safe", "read_only"]
        command.arg = "line"
        command.shapes = ["git-read"]
        command.argv = ["npm", ["test", "ci"]]
        args.path.beneath = ["drafts/", "/w/./notes"]
        args.mode.equals = { deep = [1, { a = true }], text = "x" }
        args.count.one_of = [1, 2.5, "x"]
        args.name.glob = ["*.md", "a?"]
        args.query.matches = ["[a-z]+", "x"]
        not_match = [{}, { line = "git push" }]
        [[rule.match]]
        line = "git status"
        path = "drafts/a"
        mode = { deep = [1, { a = true }], text = "x" }
        count = 2.5
        name = "x.md"
        query = "abc"
        """
    rule = Rule(
        name="mine",
        tool="mcp:x/*",
        is_glob=True,
        decision="allow",
        review="changes",
        justification="drafts are mine to lose",
        grant=False,
        risks=(RiskLevel.SAFE, RiskLevel.READ_ONLY),
        conditions=(
            CommandLike("line", ("git-read",), (("npm",), ("test", "ci"))),
            Beneath("path", ("drafts", "/w/notes")),
            OneOf("mode", ({"deep": [1, {"a": True}], "text": "x"},)),
            OneOf("count", (1, 2.5, "x")),
            Pattern("name", r"(?:[^/]*\.md)|(?:a[^/])", "*.md, a?"),
            Pattern("query", "(?:[a-z]+)|(?:x)", "[a-z]+, x"),
        ),
    )
    policy = parse_policy(text, file="/etc/p.toml")
    assert policy.rules == (rule,)
    assert policy.name == "/etc/p.toml"


def test_what_a_rule_does_not_say_is_the_default() -> None:
    assert parse_policy(RULE).rules == (Rule(name="policy:2", tool="t", decision="ask"),)
    (rule,) = parse_policy(RULE + 'review = "before"\nrisk = "safe"\ncommand.argv = ["/bin/LS"]').rules
    assert (rule.review, rule.risks) == ("before", (RiskLevel.SAFE,))
    assert rule.conditions == (CommandLike("command", (), (("ls",),)),)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (RULE + RULE[12:], ["p.toml:2", "p.toml:5"]),
        ((RULE + RULE[12:]).replace("\n", "\r\n"), ["p.toml:2", "p.toml:5"]),
        ("# no line ends here: \u2028, \x85\n" + RULE, ["p.toml:3"]),
        ("version = 1\n[['rule']]\ntool = 't'\ndecision = 'ask'\n  [[ rule ]]\n" + RULE[21:], ["p.toml:2", "p.toml:5"]),
        ('version = 1\nrule = [{ tool = "t", decision = "ask" }, { tool = "u", decision = "ask" }]',
         ["p.toml:rule 1", "p.toml:rule 2"]),
        (RULE + 'justification = """\n[[rule]]\n"""', ["p.toml:rule 1"]),
    ],
)  # fmt: skip
def test_a_rule_without_a_name_is_called_by_its_file_and_line_where_that_is_known(text: str, names: list[str]) -> None:
    assert [rule.name for rule in parse_policy(text, file="/etc/p.toml").rules] == names


# ── what a file may not say ──────────────────────────────────────────────────────────────────────────────────────

RULE_KEYS = "args, command, decision, glob, grant, justification, match, name, not_match, review, risk, tool"
MISTAKES = [
    ("argz.path = 1", f"unknown key 'argz' in a rule; the keys are: {RULE_KEYS}"),
    ("name = 5", "name must be a text, not 5"),
    ("justification = 5", "justification must be a text, not 5"),
    ('grant = "yes"', "grant must be true or false, not 'yes'"),
    ('review = "later"', "review is 'later'; it must be one of: before, changes"),
    ('risk = ["risky"]', "risk 'risky' is not one of: safe, read_only, mutation, destructive, dangerous"),
    ("risk = 5", "risk is a text, or a list of texts"),
    ("risk = []", "risk is a text, or a list of texts"),
    ('risk = [["safe"]]', "risk is a text, or a list of texts"),
    ("args = 5", "args is a table: args.NAME.beneath = …"),
    ("args.x = {}", "args.x needs a test, such as args.x.equals = …"),
    ("args.x = 5", "args.x needs a test, such as args.x.equals = …"),
    ('args.x.like = "a"', "unknown key 'like' in args.x; the keys are: beneath, equals, glob, matches, one_of"),
    ("args.x.equals = 1979-05-27", "equals is no JSON value: a value of type date is not JSON"),
    ("args.x.equals = nan", "equals is no JSON value: a number is NaN or infinite; use a finite number"),
    ("args.x.one_of = [1, [inf]]", "one_of is no JSON value: a number is NaN or infinite; use a finite number"),
    ("args.x.one_of = 5", "one_of is a list of values"),
    ("args.x.one_of = []", "one_of is a list of values"),
    ("args.x.beneath = 5", "beneath is a text, or a list of texts"),
    ("args.x.beneath = []", "beneath is a text, or a list of texts"),
    ('args.x.glob = ["a", 5]', "glob is a text, or a list of texts"),
    ('args.x.matches = ["a", ""]', "matches is a text, or a list of texts"),
    ('args.x.beneath = "~/x"', "'~/x': beneath takes a plain directory; nothing in it is expanded"),
    ('args.x.beneath = "$HOME"', "'$HOME': beneath takes a plain directory; nothing in it is expanded"),
    ('args.x.beneath = ["a", "b/*"]', "'b/*': beneath takes a plain directory; nothing in it is expanded"),
    ('args.x.beneath = "a/../b"', "'a/../b': write the directory without '..'"),
    ("command = 5", "command is a table: command.argv = […] or command.shapes = […]"),
    ("command = {}", "command needs argv or shapes"),
    ('command.line = "ls"', "unknown key 'line' in command; the keys are: arg, argv, shapes"),
    ("command.shapes = [5]", "command.shapes is a list of texts"),
    ('command.shapes = ["all"]', f"the shapes are: {', '.join(SHAPES)}; not 'all'"),
    ('command.argv = "ls"', "command.argv is a list of words"),
    ('command.argv = ["ls", [5]]', "command.argv is a list of texts"),
    ('command.argv = ["ls", ""]', "command.argv has an empty word"),
    ('command.argv = ["ls", []]', "command.argv has an empty word"),
    ('command.argv = ["ls", ["a", ""]]', "command.argv has an empty word"),
    *((f"command.argv = {argv}", "'**' stands last in command.argv, and the program is written out")
      for argv in ('["*"]', '["**"]', '["**", "x"]', '["ls", "**", "x"]', '["ls", "**", "x", "y"]')),
    ("match = 5", "match is a list of argument tables"),
    ("not_match = [5]", "not_match is a list of argument tables"),
    ("match = [{ x = nan }]", "match is no JSON value: a number is NaN or infinite; use a finite number"),
    ("not_match = [{ x = 1 }]", "the rule matches its not_match example {'x': 1}"),
]  # fmt: skip
RUNS_ANOTHER = "runs another command; what it runs is not looked at, so it cannot be allowed"
RUNS_CODE = "runs code from its arguments; it can be allowed only word for word, without *"
MISTAKES_IN_AN_ALLOW = [
    ('command.argv = ["env", "ls"]', f"'env' {RUNS_ANOTHER}"),
    ('command.argv = ["/bin/busybox", "ls"]', f"'/bin/busybox' {RUNS_ANOTHER}"),
    ('command.argv = [["ls", "xargs"]]', f"'xargs' {RUNS_ANOTHER}"),
    ('command.argv = ["python3", "**"]', f"'python3' {RUNS_CODE}"),
    ('command.argv = ["python3", "*"]', f"'python3' {RUNS_CODE}"),
]
MISTAKES_OF_PLACE = [
    ("", None, "say version = 1 at the top"),
    ("version = 2", None, "say version = 1 at the top"),
    ("version = true", None, "say version = 1 at the top"),
    ("version = 1\nrules = []", None, "unknown key 'rules'; the keys here are: rule, version"),
    ("version = 1\n[rule]", None, "rules are written as [[rule]]"),
    ("version = 1\nrule = [5]", None, "rules are written as [[rule]]"),
    ("version = 1" + '\n[[rule]]\ntool = "t"' * (MAX_RULES + 1), None, f"more than {MAX_RULES} rules"),
    ('version = 1\n\n[[rule]]\ntool = "t"\ndecision = "alow"', 5,
     "decision is 'alow'; it must be one of: allow, ask, deny"),
    ('version = 1\n\n[[rule]]\ntool = "t"', 3, "decision is missing; it must be one of: allow, ask, deny"),
    ('version = 1\n[[rule]]\ndecision = "ask"', 2, "a rule names its tool with either tool (exact) or glob"),
    (RULE + 'glob = "t*"', 2, "a rule names its tool with either tool (exact) or glob"),
    (RULE.replace('"t"', '""'), 3, "tool is empty"),
    (RULE.replace('"t"', "5"), 3, "tool must be a text, not 5"),
    (RULE.replace('tool = "t"', 'glob = ""'), 3, "glob is empty"),
    (RULE.replace('"t"', '"t*"'), 3, "'t*' looks like a pattern; write glob = 't*' if it is meant as one"),
    (RULE.replace("tool", "glob"), 3, "'t' has no *, ? or [; write tool = 't'"),
    ("version = 1\n" + '[[rule]]\nname = "a"\ntool = "t"\ndecision = "ask"\n' * 2, 7, "two rules are named 'a'"),
    (RULE + 'command.argv = ["ls"]\ncommand.arg = 5', 6, "arg must be a text, not 5"),
    (RULE + "\n[rule.args.x]\n'equals' = nan", 7,
     "equals is no JSON value: a number is NaN or infinite; use a finite number"),
    (RULE + 'justification = """\n[[rule]]\n"""\ngrant = 5', None, "grant must be true or false, not 5"),
    ('version = 1\nrule = [{ tool = "t", decision = "alow" }]', None,
     "decision is 'alow'; it must be one of: allow, ask, deny"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        *((RULE + line, 5, said) for line, said in MISTAKES),
        *((ALLOW + line, 5, said) for line, said in MISTAKES_IN_AN_ALLOW),
        *MISTAKES_OF_PLACE,
    ],
    ids=range(len(MISTAKES) + len(MISTAKES_IN_AN_ALLOW) + len(MISTAKES_OF_PLACE)),
)
def test_every_mistake_is_refused_with_its_line_in_these_words(text: str, line: int | None, said: str) -> None:
    error = refused(text)
    assert (error.message, error.line, error.column) == (said, line, None)


def test_a_program_that_runs_code_may_be_allowed_word_for_word_and_anything_may_be_denied() -> None:
    (rule,) = parse_policy(ALLOW + 'command.argv = ["python3", "-V"]').rules
    assert rule.conditions == (CommandLike("command", (), (("python3",), ("-V",))),)
    for argv in ('["env", "**"]', '["python3", "*"]'):
        assert parse_policy(RULE.replace("ask", "deny") + f"command.argv = {argv}").rules


def test_as_many_rules_as_may_be_are_read() -> None:
    text = "version = 1\n" + '[[rule]]\ntool = "t"\ndecision = "ask"\n' * MAX_RULES
    assert len(parse_policy(text).rules) == MAX_RULES


def test_a_pattern_that_re2_does_not_know_is_refused_in_its_words_and_nothing_else_is_written(
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = refused(RULE + 'args.x.matches = "(?=a)"')
    assert error.message == "the pattern is not one RE2 knows: invalid perl operator: (?="
    assert error.line == 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("version = 1\n[[rule]\n", (2, 7), "Expected ']]' at the end of an array declaration"),
        ("version = 1\nversion = 2\n", (2, 12), "Cannot overwrite a value"),
        ("version = 1\nx =", (None, None), "Invalid value (at end of document)"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_line_and_column(
    text: str, place: tuple[int | None, int | None], said: str
) -> None:
    error = refused(text)
    assert (error.message, error.line, error.column) == (said, *place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 5_000, "arrays or tables nest too deep"),
        ("x = " + "1" * 5_000, "a number is too long: "),
        (RULE + "args.x.equals = " + "[" * 70 + "]" * 70, "equals is no JSON value: the arguments nest deeper than 64"),
    ],
)
def test_what_no_reader_could_hold_is_refused_as_any_other_mistake(text: str, said: str) -> None:
    assert refused(text).message.startswith(said)


# ── examples ─────────────────────────────────────────────────────────────────────────────────────────────────────

BENEATH = ALLOW + 'args.path.beneath = "src"\n'


@pytest.mark.promise("policy:examples:checked-at-load")
@pytest.mark.parametrize(
    ("rule", "examples", "said"),
    [
        (BENEATH, 'match = [{ path = "src/a" }]', None),
        (BENEATH, 'match = [{ path = "/workspace/src" }]', None),
        (BENEATH, 'match = [{ path = "a" }]', "the rule does not match its match example {'path': 'a'}"),
        (BENEATH, 'match = [{ path = "src/a" }, {}]', "the rule does not match its match example {}"),
        (BENEATH, 'not_match = [{ path = "src/../a" }, { path = "src-evil/a" }, { path = 5 }]', None),
        (BENEATH, 'not_match = [{ path = "src/a" }]', "the rule matches its not_match example {'path': 'src/a'}"),
        (BENEATH + 'args.mode.equals = "a"\n', 'match = [{ path = "src/a", mode = "a" }]', None),
        (BENEATH + 'risk = "read_only"\n', 'match = [{ path = "src/a" }]', None),
        (ALLOW + 'command.shapes = ["git-read"]\n', 'not_match = [{ command = "git status; ls" }]', None),
    ],
)
def test_examples_are_checked_when_the_file_is_loaded(rule: str, examples: str, said: str | None) -> None:
    if said is None:
        assert parse_policy(rule + examples).rules
        return
    error = refused(rule + examples)
    assert (error.message, error.line) == (said, 6)


# ── where a file may lie ─────────────────────────────────────────────────────────────────────────────────────────


def refused_at(path: Path, workspace: Path | None = None) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(str(path), workspace=None if workspace is None else str(workspace))
    assert caught.value.file == str(path)
    return caught.value.message


def test_the_users_own_policy_lies_in_the_users_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    assert default_policy_path() == "/somewhere/handrail/policy.toml"


def test_a_policy_is_read_and_called_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULE)
    policy = load_policy(str(file))
    assert policy.name == str(file)
    assert [rule.name for rule in policy.rules] == ["mine.toml:2"]


@pytest.mark.promise("policy:place:never-from-the-workspace")
def test_a_policy_in_the_workspace_is_refused_however_it_is_reached(tmp_path: Path) -> None:
    """CVE-2025-61260, CVE-2026-21852: the repository brought its own configuration."""
    workspace, outside = tmp_path / "w", tmp_path / "home"
    workspace.mkdir()
    outside.mkdir()
    inside = workspace / "policy.toml"
    inside.write_text("version = 1")
    (outside / "link.toml").symlink_to(inside)
    (tmp_path / "w2").symlink_to(workspace)
    within = "the policy file lies in the workspace, where tools may write; keep it outside"
    for path in (
        inside,
        outside / "link.toml",
        tmp_path / "w2" / "policy.toml",
        workspace / ".." / "w" / "policy.toml",
    ):
        assert refused_at(path, workspace) == within
    assert refused_at(inside, tmp_path / "w2") == within
    (outside / "mine.toml").write_text("version = 1")
    (workspace / "out.toml").symlink_to(outside / "mine.toml")  # a tool could turn it elsewhere
    assert refused_at(workspace / "out.toml", workspace) == within
    os.link(inside, outside / "own.toml")
    assert (
        refused_at(outside / "own.toml", workspace)
        == "the policy file has a second name (a hard link); make it a file of its own"
    )
    assert load_policy(str(outside / "mine.toml"), workspace=str(workspace)).rules == ()


def test_a_policy_that_everybody_may_write_or_that_is_no_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("version = 1")
    file.chmod(0o666)
    assert refused_at(file) == "everybody may write to the policy file; take that away (chmod o-w)"
    os.mkfifo(tmp_path / "fifo")
    assert refused_at(tmp_path / "fifo") == "the policy file is no regular file"
    assert refused_at(tmp_path) == "the policy file is no regular file"
    assert refused_at(tmp_path / "missing") == "the policy file cannot be read: No such file or directory"


def test_a_policy_that_is_not_utf_8_is_refused_with_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_bytes(b"# \xff")
    assert refused_at(file) == "the policy file is not UTF-8 (byte 2)"


def test_a_policy_as_large_as_may_be_is_read_and_a_larger_one_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("version = 1\n#".ljust(MAX_FILE_BYTES, "x"))
    assert load_policy(str(file)).rules == ()
    for size in (MAX_FILE_BYTES + 1, 2**40):  # of the second, no machine could hold what is read
        os.truncate(file, size)
        assert refused_at(file) == f"the policy file is larger than {MAX_FILE_BYTES} bytes"
