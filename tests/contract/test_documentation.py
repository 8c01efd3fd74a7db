"""The documentation: it builds offline, names everything that the code registers, and its examples hold."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import py_compile
import re
import subprocess
import sys
import textwrap
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.doctor.checks import CHECKS as DOCTOR_CHECKS
from harness.doctor.checks import COMPARISONS
from harness.parity.causes.registry import families
from reports import renderers
from reports.model import AUDIT_EXIT_CODES, EXIT_CODES, HANGS, SUSPICIONS, TRIAGE_EXIT_CODES
from reports.sections.parity import ELEVEN, MARKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOP = {
    ".ci", ".github", ".gitignore", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md",
    "SECURITY.md", "constraints.txt", "docs", "harness", "mkdocs.yml", "probes", "pyproject.toml", "reports",
    "scenarios", "tests",
}  # fmt: skip
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
_spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
assert _spec is not None and _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generate.pages()


# --- what is registered is documented


@pytest.mark.slow
def test_every_command_and_option_is_documented_with_its_meaning(pages: dict[str, str]) -> None:
    page = pages["reference/command-line.md"]
    for words, command in generate.commands():
        assert f"\n## harness {words}\n" in page and command.help, words
        section = page.split(f"\n## harness {words}\n")[1].split("\n## ")[0]
        for item in command.params:
            assert item.name == "help" or item.help, f"harness {words}: {item.name} has no help"
            if item.param_type_name == "option" and item.name != "help":
                for name in item.opts:
                    assert f"`{name}`" in section, f"harness {words} {name}"


def test_every_cause_is_documented(pages: dict[str, str]) -> None:
    written = "".join(
        (DOCS / name).read_text("utf-8") for name in ("reference/verdicts.md", "explanation/attribution.md")
    )
    for name, family in families().items():
        assert f"| `{name}` | {family.meaning} |" in pages["reference/causes.md"] and family.meaning, name
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", written), name


def test_every_check_is_documented(pages: dict[str, str]) -> None:
    from harness.parity.checks.registry import checks

    for name in {*(item.name for item in checks()), *SUSPICIONS.values()}:
        assert f"| `{name}` |" in pages["reference/checks.md"], name


def test_every_doctor_check_is_documented(pages: dict[str, str]) -> None:
    written = (DOCS / "how-to" / "doctor.md").read_text("utf-8")
    for item in (*DOCTOR_CHECKS, *COMPARISONS):
        assert f"| `{item.name}` |" in pages["reference/doctor-checks.md"], item.name
        assert f"`{item.name}`" in written, item.name


def test_every_hang_kind_is_documented(pages: dict[str, str]) -> None:
    for name, kind in HANGS.items():
        assert f"| `{name}` | {kind.name} |" in pages["reference/hang-kinds.md"]


def test_every_format_of_a_watch_is_documented() -> None:
    page = (DOCS / "how-to" / "watch.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| `--format` |")]
    assert {*renderers.names("triage")} <= {*re.findall(r"`([a-z]+)`", row)}


def test_every_exit_code_is_documented(pages: dict[str, str]) -> None:
    page, readme = pages["reference/exit-codes.md"], (ROOT / "README.md").read_text("utf-8")
    for name, code in (EXIT_CODES | TRIAGE_EXIT_CODES | AUDIT_EXIT_CODES).items():
        assert re.search(rf"^\| `{code}` \| [^|]+ \| `{name}` \|$", page, re.M), name
    for name, code in EXIT_CODES.items():
        assert f"| {name} | {code} |" in readme, name


# --- links


def _anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as both GitHub and Python-Markdown make them."""
    headings = re.findall(r"^#{1,6} (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_internal_link_is_dead_in_a_checkout(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" in target:
            continue
        goal = (page.parent / target).resolve() if target else page
        assert goal.exists(), f"{page}: {target}"
        assert not fragment or fragment in _anchors(goal.read_text("utf-8")), f"{page}: {target}#{fragment}"


def test_a_link_to_a_generated_page_leads_to_it_on_the_site(pages: dict[str, str]) -> None:
    generated = (DOCS / "reference" / "generated.md").read_text("utf-8")
    assert {Path(path).stem for path in pages if path.endswith(".md")} == {*re.findall(r"^## (.+)$", generated, re.M)}
    text = "[causes](../reference/generated.md#causes)"
    assert generate.on_page_markdown(text, page=None) == "[causes](../reference/causes.md)"


def test_every_path_of_the_architecture_is_there() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = {
        path
        for path in re.findall(r"`((?:harness|scenarios|probes|reports|tests)/[\w/.*]*)`", text)
        if "NAME" not in path
    }
    assert len(named) > 10
    assert not {path for path in named if not (ROOT / path).exists()}


def test_nothing_lies_at_the_top_but_what_belongs_there() -> None:
    """Programs that are tried leave logs and evidence, which are committed in passing."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name.partition("/")[0] for name in tracked.stdout.splitlines()} == TOP


@pytest.mark.slow
def test_no_message_of_the_code_names_a_page_that_is_not_there(pages: dict[str, str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in tracked.stdout.split():
        for path in re.findall(r"\bdocs/([\w/-]+\.md)", (ROOT / name).read_text("utf-8")):
            assert (DOCS / path).exists() or path in pages, f"{name}: docs/{path}"


@pytest.mark.slow
def test_no_message_sends_a_user_to_a_page_that_a_wheel_lacks() -> None:
    """What a user reads says itself what to write: an installation holds no docs/. Docstrings and comments may."""
    wrong = []
    for room in ("harness", "reports", "probes", "scenarios"):
        for file in (ROOT / room).rglob("*.py"):
            text = file.read_text("utf-8")
            if "docs/" not in text:
                continue
            tree = ast.parse(text)
            told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            wrong += [
                f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told
                if re.search(r"docs/[\w/-]+\.md", node.value) and " " in node.value
            ]
    assert not wrong


# --- examples


EXAMPLES = [
    (page, textwrap.dedent(example))
    for page in PAGES
    for example in re.findall(r"^ *<!-- runnable -->\n *```python\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S)
]
SNIPPETS = [
    (page, textwrap.dedent(snippet))
    for page in PAGES
    for snippet in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S)
]


@pytest.mark.parametrize(("page", "example"), EXAMPLES, ids=lambda value: getattr(value, "name", ""))
def test_every_runnable_example_runs(page: Path, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(page), "exec"), {"__name__": "example", "__file__": str(tmp_path / "example.py")})


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS, ids=lambda value: getattr(value, "name", ""))
def test_every_python_snippet_has_its_imports(page: Path, snippet: str) -> None:
    """Every name that it reads is one that it makes or imports, or a builtin."""
    tree = ast.parse(snippet)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {*dir(builtins), "__file__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    assert not {node.id for node in names} - made


# --- the site


class _Loads(HTMLParser):
    """What a browser loads by itself when it opens the page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "img", "iframe", "source"}:
            self.urls.append(values.get("src") or "")
        if tag == "link" and (values.get("rel") or "") != "canonical":
            self.urls.append(values.get("href") or "")


@pytest.mark.night  # `make docs`, which is a part of `make test`, builds the site as strictly by day
@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="run `make install`; `make test` builds the site too")
    py_compile.compile(str(DOCS / "generate.py"))  # what it leaves behind belongs on no site
    environ = {name: value for name, value in os.environ.items() if name != "NO_MKDOCS_2_WARNING"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=environ)
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    assert not list((tmp_path / "site").rglob("__pycache__"))
    shown = list((tmp_path / "site").rglob("*.html"))
    assert len(shown) >= 40
    for page in shown:
        loads = _Loads()
        loads.feed(page.read_text("utf-8"))
        assert not [url for url in loads.urls if re.match(r"(https?:)?//", url)], page
        assert "Made with" not in page.read_text("utf-8"), page


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


FIRST_LINE = re.compile(
    rf"^(?:{'|'.join(sorted({*EXIT_CODES, *TRIAGE_EXIT_CODES, *AUDIT_EXIT_CODES}))})\b.*  \S", re.MULTILINE
)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))], ids=str)
def test_a_verdict_that_is_shown_in_part_is_marked(page: Path) -> None:
    """The first and the last line of a verdict are its answer: a reader of a shortened block would miss the last."""
    parts = re.split(r"^```.*\n", page.read_text("utf-8"), flags=re.MULTILINE)
    for before, block, after in zip(parts[0::2], parts[1::2], parts[2::2], strict=False):
        if FIRST_LINE.search(block) and not re.search(r"\(exit code \d+\): .*\n*\Z", block):
            around = f"{before.rstrip().splitlines()[-1:]} {block.splitlines()[0]} {after.strip().splitlines()[:1]}"
            assert "shortened" in around.casefold(), block


TALLY = re.compile(r"^(\S.*?)   \d.*(?:ruled out|not tested|confirmed|undecided)")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))], ids=str)
def test_a_tally_of_checks_counts_what_is_listed_below_it(page: Path) -> None:
    """How many other checks there are changes with every new one: a page that says it is wrong a week later."""
    marks = {mark: state for state, mark in MARKS.items()}
    for block in re.split(r"^```.*\n", page.read_text("utf-8"), flags=re.MULTILINE)[1::2]:
        for line in filter(TALLY.match, block.splitlines()):
            assert line.startswith(ELEVEN), line
            listed = Counter(marks[mark] for mark in re.findall(r"(?:^ *|· )([✓✗○?]) \d", block, re.MULTILINE))
            assert listed == {state: int(count) for count, state in re.findall(rf"(\d+) ({'|'.join(MARKS)})", line)}
            assert listed.total() == len(SUSPICIONS)


def test_a_block_in_part_is_seen() -> None:
    assert FIRST_LINE.search("EQUIVALENT  3 of 3 tokens equal\n") and FIRST_LINE.search(
        "HUNG K2 order inversion  nobody\n"
    )
    assert not FIRST_LINE.search("harness parity vllm sglang\n")
