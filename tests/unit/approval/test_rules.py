"""Rules: how they match and which one wins. Each test names what went wrong elsewhere."""

import fnmatch
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handrail import ToolDef, ToolRegistry
from handrail.approval.policy import RiskTable, Verdict
from handrail.approval.policy_file import parse_policy
from handrail.approval.review import review
from handrail.approval.rules import CompiledRules, OneOf, Rule, Subject, speaks, verdict_of
from handrail.call import Checked, Origin, Proposed, RegisteredTool
from handrail.errors import PolicyError
from handrail.tool import RiskLevel, Tool


def subject(
    tool: str = "host:t", risk: str = "mutation", arguments: dict[str, Any] | None = None, **paths: Any
) -> Subject:
    """A call; ``paths`` are guarded arguments as (requested, resolved), or one text for both."""
    pairs = {name: (path, path) if isinstance(path, str) else path for name, path in paths.items()}
    given = {**(arguments or {}), **{name: pair[0] for name, pair in pairs.items()}}
    return Subject((tool,), RiskLevel(risk), given, pairs, "/w")


def decided(rules: CompiledRules, call: Subject) -> str | None:
    finding = rules.find(call)
    return None if finding is None else finding.decision


def rules(text: str) -> CompiledRules:
    return parse_policy("version = 1\n" + text)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("policy:match:exact-unless-a-glob-is-written")
def test_a_rule_for_add_is_not_a_rule_for_addition() -> None:
    """inspect_ai 5231."""
    policy = rules('[[rule]]\ntool = "host:add"\ndecision = "allow"')
    assert decided(policy, subject("host:add")) == "allow"
    for other in ("host:addition", "host:add_user", "host:add.", "x:host:add", "host:ADD", "host:ad"):
        assert decided(policy, subject(other)) is None


def test_a_glob_is_one_only_where_it_is_written_as_one() -> None:
    policy = rules('[[rule]]\nglob = "mcp:github/get_*"\ndecision = "allow"')
    assert decided(policy, subject("mcp:github/get_issue")) == "allow"
    assert decided(policy, subject("mcp:github/create_issue")) is None
    assert decided(policy, subject("mcp:github2/get_issue")) is None
    with pytest.raises(PolicyError, match="looks like a pattern"):
        rules('[[rule]]\ntool = "mcp:*"\ndecision = "allow"')
    with pytest.raises(PolicyError, match="has no"):
        rules('[[rule]]\nglob = "mcp:x"\ndecision = "allow"')


# ── which wins ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("policy:order:deny-beats-ask-beats-allow")
@pytest.mark.parametrize("order", [("allow", "ask", "deny"), ("deny", "ask", "allow"), ("ask", "allow", "deny")])
def test_deny_beats_ask_beats_allow_in_any_order(order: tuple[str, ...]) -> None:
    """claude-code 2.1.74, 2.1.77: an allow beat a deny."""
    text = "".join(f'[[rule]]\ntool = "host:t"\ndecision = "{word}"\n' for word in order)
    assert decided(rules(text), subject()) == "deny"
    without_deny = "".join(f'[[rule]]\ntool = "host:t"\ndecision = "{word}"\n' for word in order if word != "deny")
    assert decided(rules(without_deny), subject()) == "ask"


def test_the_first_of_equals_is_named() -> None:
    policy = rules("".join(f'[[rule]]\nname = "{name}"\ntool = "host:t"\ndecision = "ask"\n' for name in "ab"))
    finding = policy.find(subject())
    assert finding is not None
    assert finding.rule.name == "a"


# ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────

SRC = '[[rule]]\ntool = "host:t"\ndecision = "{}"\nargs.path.beneath = "{}"'
PATHS = [
    # decision, directory, requested, resolved, decided
    ("allow", "src", "/w/src/a", "/w/src/a", True),
    ("allow", "src", "/w/src", "/w/src", True),
    ("allow", "src/", "/w/src/a", "/w/src/a", True),
    ("allow", "./src", "/w/src/a", "/w/src/a", True),
    ("allow", "/w/src", "/w/src/a", "/w/src/a", True),
    ("allow", ".", "/w/src/a", "/w/src/a", True),
    ("allow", "a", "/w/a/x", "/w/a/x", True),
    ("allow", "/", "/w/a", "/w/a", True),
    ("deny", "/", "/etc/x", "/etc/x", True),
    ("allow", "src", "/w/src-evil/a", "/w/src-evil/a", False),  # CVE-2025-53110: a prefix of text is no parent
    ("allow", "src", "/w/a/src/b", "/w/a/src/b", False),  # claude-code 2.1.214: matched nested src/ anywhere
    ("allow", "src", "/w/src/link", "/w/secret", False),  # claude-code 2.1.89: only the requested path was checked
    ("allow", "src", "/w/link", "/w/src/a", False),
    ("allow", "src", "/w/SRC/a", "/w/SRC/a", False),
    ("deny", "secret", "/w/ok", "/w/secret", True),  # CVE-2026-25724: read through a link
    ("deny", "secret", "/w/secret/link", "/w/ok", True),
    ("deny", "secret/", "/w/secret", "/w/secret", True),  # claude-code 2.1.224: a trailing slash evaded it
    ("deny", "secret", "/w/secret/", "/w/secret", True),
    ("deny", ".git", "/w/.GIT/config", "/w/.GIT/config", True),  # CVE-2025-59944: case
    ("deny", "Policy.TOML", "/w/policy.toml", "/w/policy.toml", True),
    ("deny", "caf\u00e9", "/w/cafe\u0301/x", "/w/cafe\u0301/x", True),  # NFC and NFD
    ("deny", "secret", "/w/secrets", "/w/secrets", False),
    ("deny", "secret", "/w/Secret/\u00e9", "/w/Secret/\u00e9", True),
    ("ask", "secret", "/w/ok", "/w/secret", True),
]


@pytest.mark.promise("policy:paths:requested-and-resolved")
@pytest.mark.parametrize(("decision", "directory", "requested", "resolved", "speaking"), PATHS)
def test_the_table_of_path_rules(decision: str, directory: str, requested: str, resolved: str, speaking: bool) -> None:
    policy = rules(SRC.format(decision, directory))
    assert decided(policy, subject(path=(requested, resolved))) == (decision if speaking else None)


def test_a_path_that_nobody_resolved_allows_nothing_and_can_be_denied() -> None:
    allowed, denied = rules(SRC.format("allow", "src")), rules(SRC.format("deny", "src"))
    call = subject(arguments={"path": "src/a"})
    assert decided(allowed, call) is None
    assert decided(denied, call) == "deny"
    assert decided(denied, subject(arguments={"path": "x/../src/a"})) == "deny"
    assert decided(denied, subject(arguments={"path": 5})) is None
    assert decided(denied, replace(call, workspace="")) == "deny"


def test_the_workspace_may_be_the_root() -> None:
    call = replace(subject(path="/src/a"), workspace="/")
    assert decided(rules(SRC.format("allow", "src")), call) == "allow"
    assert decided(rules(SRC.format("allow", "lib")), call) is None


@pytest.mark.parametrize("directory", ["~/x", "$HOME", "a/../b", "src/*"])
def test_a_directory_that_would_need_expanding_is_refused(directory: str) -> None:
    with pytest.raises(PolicyError):
        rules(SRC.format("allow", directory))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_values_are_compared_as_json_without_coercion() -> None:
    policy = rules('[[rule]]\ntool = "host:t"\ndecision = "allow"\nargs.n.one_of = [1, "x"]')
    assert [decided(policy, subject(arguments={"n": value})) for value in (1, "x")] == ["allow", "allow"]
    assert [decided(policy, subject(arguments={"n": value})) for value in (True, "1", 2, [1], None)] == [None] * 5
    assert decided(policy, subject(arguments={})) is None


def test_a_pattern_is_matched_from_beginning_to_end() -> None:
    """mini-swe-agent: re.match made "ls" match "ls; rm -rf ~"."""
    policy = rules('[[rule]]\ntool = "host:t"\ndecision = "allow"\nargs.q.matches = "[a-z]+"')
    assert decided(policy, subject(arguments={"q": "ls"})) == "allow"
    for value in ("ls; rm", "ls\n", "\nls", "LS", "", 5, ["ls"]):
        assert decided(policy, subject(arguments={"q": value})) is None


def test_a_glob_of_a_value_stays_within_a_directory_unless_it_says_otherwise() -> None:
    policy = rules('[[rule]]\ntool = "host:t"\ndecision = "allow"\nargs.path.glob = ["*.md", "docs/**"]')
    assert decided(policy, subject(path="/w/a.md")) == "allow"
    assert decided(policy, subject(path="/w/docs/x/y")) == "allow"
    assert decided(policy, subject(path="/w/sub/a.md")) is None
    assert decided(policy, subject(path=("/w/a.md", "/w/secret"))) is None
    assert decided(policy, subject(path="/x/a.md")) is None


def test_of_many_patterns_the_one_that_fits_is_found() -> None:
    text = "".join(
        f'[[rule]]\nname = "{n}"\ntool = "host:t"\ndecision = "ask"\nargs.q.matches = "p{n}"\n' for n in range(1_030)
    )
    policy = rules(text)
    for n in (0, 1, 2, 511, 512, 513, 1_029):
        finding = policy.find(subject(arguments={"q": f"p{n}"}))
        assert finding is not None
        assert finding.rule.name == str(n)
    assert policy.find(subject(arguments={"q": "p1030"})) is None


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

COMMANDS = [
    # decision, argv, line, decided
    ("allow", '["wc", "*"]', "wc test", "allow"),
    ("allow", '["wc", "*"]', "wc", None),
    ("allow", '["wc", "*"]', "wc test x", None),
    ("allow", '["wc", "*"]', "wc --version", None),  # an option is no word for *
    ("allow", '["wc", "*", "x"]', "wc a x", "allow"),
    ("allow", '["wc", "*", "x"]', "wc a y", None),
    ("allow", '["wc", "run", "**"]', "wc run", "allow"),
    ("allow", '["wc", "run", "**"]', "wc run a b", "allow"),
    ("allow", '["wc", "run", "**"]', "wc run a --x", None),
    ("allow", '["wc", "run", "**"]', "wc", None),
    ("allow", '["wc", "run", "**"]', "wc test a", None),
    ("allow", '["npm", ["test", "ci"]]', "npm ci", "allow"),
    ("allow", '["npm", ["test", "ci"]]', "npm publish", None),
    ("allow", '["npm", "--version"]', "npm --version", "allow"),
    ("allow", '["npm", "test"]', "env ls", "ask"),  # what a wrapper runs is not looked at
    ("allow", '["npm", "test"]', "ls; id", "ask"),
    ("allow", '["npm", "test"]', "ls", None),
    ("deny", '["git", "push"]', "git -C x push", "deny"),
    ("deny", '["git", "push"]', "push git", None),
    ("deny", '["git", "push"]', "/bin/GIT push", "deny"),
    ("deny", '["git", "push"]', "git /x/push", None),
    ("deny", '["git", "push"]', "git PUSH", None),
    ("deny", '["git", "*"]', "git x", "deny"),
    ("deny", '["git", "*"]', "git", None),
    ("deny", '["git", "*", "x"]', "git a x", "deny"),
    ("deny", '["git", "*", "x"]', "git x", None),
    ("deny", '["rm", "**"]', "rm", "deny"),
    ("deny", '["rm", "**"]', "ls; rm -r x", "deny"),
    ("deny", '["rm", "**"]', "ls", None),
    ("ask", '["rm", "**"]', "x" * 5_000, "ask"),
    ("deny", '["rm", "**"]', "x" * 5_000, "deny"),  # too large to read
]


@pytest.mark.parametrize(("decision", "argv", "line", "wanted"), COMMANDS, ids=range(len(COMMANDS)))
def test_the_table_of_command_patterns(decision: str, argv: str, line: str, wanted: str | None) -> None:
    policy = rules(f'[[rule]]\ntool = "host:t"\ndecision = "{decision}"\ncommand.argv = {argv}')
    assert decided(policy, subject(arguments={"command": line})) == wanted


def test_a_shape_can_be_denied_and_denies_nothing_else() -> None:
    policy = rules('[[rule]]\ntool = "host:t"\ndecision = "deny"\ncommand.shapes = ["git-read"]')
    found = {
        line: decided(policy, subject(arguments={"command": line})) for line in ("git status", "git push", "ls; x")
    }
    assert found == {"git status": "deny", "git push": None, "ls; x": None}


def test_a_line_that_nobody_can_read_is_heard_by_every_rule_whose_other_conditions_hold() -> None:
    """Rules that say the same of such a line are tried once; these do not."""
    rule = '[[rule]]\ntool = "host:t"\ndecision = "allow"\ncommand.argv = ["npm", "{}"]\n{}\n'
    by_value = rules("".join(rule.format(n, f"args.n.equals = {n}") for n in range(3)))
    by_risk = rules("".join(rule.format(n, f'risk = "{risk.value}"') for n, risk in enumerate(RiskLevel)))
    for n in range(3):
        assert decided(by_value, subject(arguments={"command": "ls; id", "n": n})) == "ask"
    assert decided(by_value, subject(arguments={"command": "ls; id", "n": 3})) is None
    for risk in RiskLevel:
        assert decided(by_risk, subject(risk=risk.value, arguments={"command": "ls; id"})) == "ask"


# ── the decision about a call ────────────────────────────────────────────────────────────────────────────────────


def checked_call(*, staged: bool = False) -> Checked:
    tool = Tool(ToolDef("t", risk_level=RiskLevel.MUTATION), lambda args: "", staged=staged)
    arguments = {"path": "/w/link", "n": 1}
    proposed = Proposed("c", RegisteredTool(tool, "host:t", "t_", "host"), arguments, Origin())
    return Checked(proposed, arguments, "/w", {"path": "link"}, {"path": "/w/src/a"})


@pytest.mark.parametrize("staged", [False, True])
def test_a_checked_call_is_seen_by_its_names_risk_arguments_and_both_ways_its_paths_read(staged: bool) -> None:
    assert Subject.of(checked_call(staged=staged)) == Subject(
        names=("host:t", "t_"),
        risk=RiskLevel.MUTATION,
        arguments={"path": "/w/link", "n": 1},
        paths={"path": ("/w/link", "/w/src/a")},
        workspace="/w",
        staged=staged,
    )


@pytest.mark.parametrize(
    ("said", "staged", "review"),
    [
        ("", False, "before"),
        ("", True, "changes"),
        ('review = "before"', True, "before"),
        ('review = "changes"', True, "changes"),
        ('review = "changes"', False, "before"),  # it has none to show
    ],
)
def test_a_rule_decides_a_call_with_its_name_its_reason_and_its_review(said: str, staged: bool, review: str) -> None:
    text = f'[[rule]]\nname = "mine"\nglob = "host:*"\ndecision = "ask"\njustification = "because"\n{said}'
    verdict = rules(text).decide(checked_call(staged=staged))
    assert verdict == Verdict("ask", review, "mine", "because", can_grant=True)
    assert rules(text + "\ngrant = false").decide(checked_call()).can_grant is False
    assert rules(text.replace('"ask"', '"allow"')).decide(checked_call()).can_grant is False


def test_where_no_rule_speaks_the_risk_table_decides_and_a_rule_gives_its_decision_for_a_reason() -> None:
    assert rules("").decide(checked_call()) == RiskTable().decide(checked_call())
    assert rules('[[rule]]\ntool = "t_"\ndecision = "deny"').decide(checked_call()).why == "deny t_"


def test_every_rule_that_speaks_is_named_the_strictest_first_and_else_in_the_order_of_the_file() -> None:
    words = {"a": "allow", "b": "deny", "c": "ask", "d": "deny", "e": "allow"}
    text = "".join(f'[[rule]]\nname = "{name}"\ntool = "host:t"\ndecision = "{words[name]}"\n' for name in words)
    silent = '[[rule]]\nname = "f"\ntool = "host:t"\ndecision = "deny"\nargs.n.equals = 1\n'
    assert [finding.rule.name for finding in rules(text + silent).findings(subject())] == ["b", "d", "c", "a", "e"]


def test_risk_limits_a_rule() -> None:
    policy = rules('[[rule]]\nglob = "mcp:*"\nrisk = ["safe", "read_only"]\ndecision = "allow"')
    assert decided(policy, subject("mcp:x/y", "read_only")) == "allow"
    assert decided(policy, subject("mcp:x/y", "mutation")) is None


def test_only_a_mutation_may_be_granted_whatever_a_rule_says() -> None:
    policy = rules('[[rule]]\nglob = "*"\ndecision = "ask"\ngrant = true')
    for risk in RiskLevel:
        call = subject(risk=risk.value)
        finding = policy.find(call)
        assert finding is not None
        assert verdict_of(finding, call).can_grant is (risk is RiskLevel.MUTATION)


# ── the version, the index ───────────────────────────────────────────────────────────────────────────────────────


def test_any_change_of_a_rule_changes_the_version() -> None:
    texts = [
        SRC.format("allow", "src"),
        SRC.format("ask", "src"),
        SRC.format("allow", "lib"),
        SRC.format("allow", "src") + "\ngrant = false",
        "",
    ]
    assert len({rules(text).version for text in texts}) == len(texts)
    assert rules(texts[0]).version == rules(texts[0]).version


names = st.sampled_from(["host:t", "host:u", "mcp:a/b", "mcp:a/c"])
directories = st.sampled_from([".", "src", "src/a", "/w/src", "/w", "lib", "SRC", "secret"])
files = st.sampled_from(
    ["/w/src/a/x", "/w/src/b", "/w/lib/x", "/w/SRC/x", "/w", "/w/secret", "/etc/x", "/w/src-evil/x"]
)
lines = st.sampled_from(
    ["git status", "git push", "ls; git push", "env git push", "ls -la", "/tmp/git push", "$(x)", "x" * 5_000]
)


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    tool = draw(names)
    where = f'glob = "{draw(st.sampled_from(["*", "mcp:*", "host:?"]))}"' if draw(st.booleans()) else f'tool = "{tool}"'
    text = f'[[rule]]\n{where}\ndecision = "{draw(st.sampled_from(["allow", "ask", "deny"]))}"\n'
    kinds = draw(
        st.lists(st.sampled_from(["beneath", "equals", "matches", "argv", "shapes", "risk"]), max_size=2, unique=True)
    )
    for kind in kinds:
        if kind == "beneath":
            text += f'args.path.beneath = ["{draw(directories)}", "{draw(directories)}"]\n'
        elif kind == "equals":
            text += f"args.n.one_of = [{draw(st.integers(0, 3))}, {draw(st.integers(0, 3))}]\n"
        elif kind == "matches":
            text += f'args.q.matches = "{draw(st.sampled_from(["a+", ".*", "b"]))}"\n'
        elif kind == "risk":
            text += f'risk = "{draw(st.sampled_from(["mutation", "dangerous"]))}"\n'
        elif kind == "argv" and "shapes" not in kinds:
            text += (
                f"command.argv = {draw(st.sampled_from([['git', 'push'], ['git', 'status'], ['ls', '**'], ['git']]))}\n"
            )
        elif kind == "shapes" and "argv" not in kinds:
            text += 'command.shapes = ["git-read"]\n'
    return text


@pytest.mark.promise("policy:index:same-as-trying-every-rule")
@settings(deadline=None, max_examples=250)
@given(
    texts=st.lists(rule_texts(), max_size=8),
    tool=names,
    risk=st.sampled_from(["mutation", "dangerous"]),
    requested=files,
    resolved=files,
    guarded=st.booleans(),
    n=st.integers(0, 3),
    q=st.sampled_from(["aa", "b", "c"]),
    line=lines,
)
def test_the_index_finds_what_trying_every_rule_finds(
    texts: list[str], tool: str, risk: str, requested: str, resolved: str, guarded: bool, n: int, q: str, line: str
) -> None:
    policy = rules("".join(texts))
    arguments = {"n": n, "q": q, "command": line, "path": requested}
    paths = {"path": (requested, resolved)} if guarded else {}
    call = Subject((tool,), RiskLevel(risk), arguments, paths, "/w")
    strict = {"allow": 0, "ask": 1, "deny": 2}
    best: tuple[int, str] | None = None
    for rule in policy.rules:
        matches = fnmatch.fnmatchcase(tool, rule.tool) if rule.is_glob else tool == rule.tool
        finding = speaks(rule, call) if matches else None
        if finding is not None and (best is None or strict[finding.decision] > best[0]):
            best = (strict[finding.decision], finding.decision)
    assert decided(policy, call) == (None if best is None else best[1])


# ── review ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_review_finds_rules_that_never_match_are_hidden_or_allow_too_much() -> None:
    registry = ToolRegistry()
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": False}
    registry.register_from_def(ToolDef("write", parameters=parameters), lambda args: "")
    registry.register_from_def(ToolDef("boom", risk_level=RiskLevel.DANGEROUS), lambda args: "")
    policy = rules(
        """
        [[rule]]
        name = "hides"
        tool = "host:write"
        decision = "deny"
        args.path.beneath = "src"
        [[rule]]
        name = "hidden"
        tool = "host:write"
        decision = "allow"
        args.path.beneath = "src/lib"
        [[rule]]
        name = "stranger"
        tool = "host:wriet"
        decision = "ask"
        [[rule]]
        name = "argument"
        tool = "host:write"
        decision = "ask"
        args.pth.equals = "x"
        [[rule]]
        name = "contradiction"
        tool = "host:write"
        decision = "ask"
        args.path.beneath = "a"
        args.path.one_of = ["x"]
        [[rule]]
        name = "broad"
        tool = "host:boom"
        decision = "allow"
        [[rule]]
        name = "fine"
        tool = "host:write"
        decision = "allow"
        args.path.beneath = "docs"
        """
    )
    found = {(mistake.rule, mistake.kind) for mistake in review(policy, list(registry))}
    assert found == {("hidden", "shadowed"), ("stranger", "never"), ("argument", "never"), ("broad", "broad")}


@settings(deadline=None, max_examples=150)
@given(
    texts=st.lists(rule_texts(), min_size=2, max_size=5), tool=names, requested=files, n=st.integers(0, 3), line=lines
)
@example(
    texts=[
        '[[rule]]\ntool = "host:t"\ndecision = "allow"\n',
        '[[rule]]\ntool = "host:t"\ndecision = "allow"\ncommand.argv = ["git", "push"]\n',
    ],
    tool="host:t",
    requested="/w/src/a/x",
    n=0,
    line="ls; git push",
)
@example(
    texts=[
        f'[[rule]]\ntool = "host:t"\ndecision = "{decision}"\ncommand.shapes = ["git-read"]\n'
        for decision in ("allow", "deny")
    ],
    tool="host:t",
    requested="/w/src/a/x",
    n=0,
    line="ls; git push",
)
def test_a_rule_that_review_calls_hidden_never_decides(
    texts: list[str], tool: str, requested: str, n: int, line: str
) -> None:
    policy = rules("".join(texts))
    hidden = {mistake.rule for mistake in review(policy) if mistake.kind in {"shadowed", "never"}}
    arguments = {"n": n, "q": "a", "command": line, "path": requested}
    call = Subject((tool,), RiskLevel.MUTATION, arguments, {"path": (requested, requested)}, "/w")
    finding = policy.find(call)
    assert finding is None or finding.rule.name not in hidden


def test_the_risks_a_rule_names_count_in_its_review() -> None:
    registry = ToolRegistry()
    for name, risk in (("boom", RiskLevel.DANGEROUS), ("set", RiskLevel.MUTATION)):
        registry.register_from_def(ToolDef(name, risk_level=risk), lambda args: "")

    def found(tool: str, *risks: RiskLevel) -> list[tuple[str, str]]:
        rule = Rule(name="r", tool=tool, is_glob="*" in tool, decision="allow", risks=risks)
        return [(mistake.kind, mistake.text) for mistake in review(CompiledRules([rule]), list(registry))]

    assert found("host:*", RiskLevel.MUTATION) == []
    assert found("host:*", RiskLevel.DANGEROUS) == [
        ("broad", "it allows every call of host:boom, whatever its arguments")
    ]
    assert found("host:boom", RiskLevel.MUTATION) == [
        ("never", "its tools are of risk dangerous, never of one that is named")
    ]


def test_contradicting_values_never_match() -> None:
    rule = Rule(name="r", tool="t", decision="ask", conditions=(OneOf("n", (1,)), OneOf("n", (2,))))
    assert [mistake.kind for mistake in review(CompiledRules([rule]))] == ["never"]


def test_a_denied_program_is_denied_by_its_name_however_it_is_written() -> None:
    policy = parse_policy('version = 1\n[[rule]]\ntool = "t"\ndecision = "deny"\ncommand.argv = ["/bin/RM", "**"]')
    denied = [Subject(("t",), RiskLevel.DANGEROUS, {"command": line}) for line in ("rm -r x", "/usr/bin/rm x")]
    assert all(policy.find(call) is not None for call in denied)
    assert policy.find(Subject(("t",), RiskLevel.DANGEROUS, {"command": "ls x"})) is None


def test_a_question_mark_in_a_glob_is_one_character_of_a_name() -> None:
    policy = parse_policy('version = 1\n[[rule]]\ntool = "t"\ndecision = "ask"\nargs.x.glob = "a?c"')
    found = {
        text: policy.find(Subject(("t",), RiskLevel.MUTATION, {"x": text})) is not None for text in ("abc", "ac", "a/c")
    }
    assert found == {"abc": True, "ac": False, "a/c": False}
