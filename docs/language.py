"""Count the patterns of hard English in docs, docstrings, comments and messages. `make lint` runs it.

    python docs/language.py                       fail if a count is above the one in docs/language.json
    python docs/language.py --update              lower the counts in docs/language.json, and never raise one
    python docs/language.py --show NAME PATH...   show the sentences of a pattern, such as `docs/semicolon` or `/what`

The rules behind the patterns are in CONTRIBUTING.md. A pattern is a hint: some uses are right, so few counts are zero.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
COUNTS = ROOT / "docs/language.json"
PATTERNS = {
    "semicolon": r";(?=\s|$)",  # two sentences
    "what": r"\b[Ww]hat (?!happen|to |next|for\b)(?![^.]*\?)",  # the noun
    "give": r"\b([Gg]iv(es|ing|en|e)|gave)\b",  # returns, passes, delivers, assigns
    "for-it": r", for (it|they|there|this|that|its|their|the|a|an|no|each|Spark|Pub/Sub|only|all|both)\b",
    "where-none": r"\b[Ww]here (there|it|they|none|no|nothing|one) ",  # if
    "which": r"\b(of|in|by|from|to|with|for) which\b",  # a second sentence
    "who": r"\b([Ww]hoever|[Nn]obody|[Ss]omebody|[Ww]ho)\b",  # the role
    "is-told": r"\b(is|are|was) told\b|\bin a sentence\b|\bis said\b",  # is reported
    "is-none": r"\b(is|are) none\b|[Nn]one where",  # or None
    "comma-too": r",? too[.,]|, and not ",  # also, instead of
    "archaic": r"\b(anew|comes again|come again|goes on|go on|beside|at the most|mend|mended|say, )\b",
}
FOLDERS = ("", "docs/**/", "examples/", "notebooks/", "pubsub_spark/**/", "tests/**/")
LIMITS = {"docs": (30, 40), "docstrings": (40,), "comments": (40,), "messages": (40,)}
CODE = re.compile(r"[{}]|\bsys\.|default-src|^\s*from \S+ import ")  # of a string in another language
MAGIC = re.compile(r"^# MAGIC ?(.*)", re.MULTILINE)  # text in a notebook in Databricks' format
CODE_BLOCK = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


def markdown(text: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph, item and cell of a page."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", CODE_BLOCK.sub("\n", text), flags=re.DOTALL)
    text = re.sub(r"^( *)([-*|#>]|\d+\.)", r"\n\1", text, flags=re.MULTILINE)  # items, rows, headings
    yield from (("docs", cell) for block in re.split(r"\n\s*\n", text) for cell in block.split(" | "))


def prose(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind (a key of LIMITS) and the text of each paragraph of a file."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from markdown(text)
        return
    if path.parent.name == "notebooks":
        yield from markdown("\n".join(MAGIC.findall(text)))
        text = MAGIC.sub("", text)
    tree = ast.parse(text)
    skipped = set()  # docstrings, and the parts of f-strings
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
                yield from (
                    ("docstrings", block) for block in re.split(r"\n\s*\n|\n(?=    |\s*[-*] |\S+  )", docstring)
                )
        elif isinstance(node, ast.JoinedStr) and "tests" not in path.parts:
            skipped.update(id(part) for part in ast.walk(node))
            yield "messages", "".join(str(v.value) if isinstance(v, ast.Constant) else "`x`" for v in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in skipped and "tests" not in path.parts:
            if str(node.value).count(" ") > 2:
                yield "messages", str(node.value)
    row, comment = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("#!", "# %%")):
            is_own_line = token.line.strip() == token.string  # a comment behind code is one by itself
            if not is_own_line or token.start[0] > row + 1:
                yield "comments", comment
                comment = ""
            row, comment = token.start[0] if is_own_line else 0, f"{comment} {token.string.lstrip('#: ')}"
    yield "comments", comment


def findings(paths: list[Path]) -> dict[str, list[str]]:
    """Return `path: sentence` for each occurrence of each `kind/pattern`."""
    occurrences: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for kind, paragraph in prose(path):
            if kind == "messages" and CODE.search(re.sub(r"`[^`]*`", "", paragraph)):
                continue
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[^a-z]|\w+: )", " ".join(paragraph.split())):
                words = re.sub(r"`[^`]*`", "code", sentence)
                line = f"{path.relative_to(ROOT)}: {sentence}"
                for limit in LIMITS[kind]:
                    occurrences[f"{kind}/over-{limit}-words"] += [line] * (len(words.split()) > limit)
                for name, pattern in PATTERNS.items():
                    occurrences[f"{kind}/{name}"] += [line] * len(re.findall(pattern, words))
    return occurrences


def changed_files() -> tuple[str, ...]:
    """Return the starts of the lines of files that changed since the counts did, or of all if Git does not know."""
    git = ["git", "-C", str(ROOT)]
    log = [*git, "log", "-1", "--format=%H", "--", str(COUNTS)]
    commit = subprocess.run(log, capture_output=True, text=True).stdout.strip()
    changes = subprocess.run([*git, "diff", "--name-only", commit or "HEAD"], capture_output=True, text=True).stdout
    return tuple(f"{path}:" for path in changes.split()) or ("",)


def compare(occurrences: dict[str, list[str]], allowed: dict[str, int]) -> tuple[list[str], dict[str, int]]:
    """Return the patterns that occur more often than allowed, and the counts that may be lowered."""
    counts = {key: len(occurrences.get(key, ())) for key in {*occurrences, *allowed}}
    risen = sorted(key for key, count in counts.items() if count > allowed.get(key, 0))
    return risen, {key: count for key, count in counts.items() if count < allowed.get(key, 0)}


def main(arguments: list[str]) -> int:
    """Run the command of the module's docstring and return its exit code."""
    paths = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}*.*")]
    paths = sorted(path for path in paths if path.suffix in (".md", ".py") and path != Path(__file__))
    if arguments[:1] == ["--show"]:
        paths = [path for path in paths if str(path.relative_to(ROOT)).startswith(tuple(arguments[2:]) or "")]
        lines = [f"{key}: {line}" for key, lines in findings(paths).items() for line in lines if arguments[1] in key]
        print(*lines, sep="\n")
        return 0
    occurrences = findings(paths)
    allowed: dict[str, int] = json.loads(COUNTS.read_text())
    risen, fallen = compare(occurrences, allowed)
    for key in risen:
        print(f"{key}: {len(occurrences[key])} instead of {allowed.get(key, 0)}. Reword (CONTRIBUTING.md, Language):")
        print(*(line for line in occurrences[key] if line.startswith(changed_files())), sep="\n")
    if arguments == ["--update"]:
        COUNTS.write_text(json.dumps({**allowed, **fallen}, indent=1, sort_keys=True) + "\n")
    elif fallen:
        print("docs/language.json allows more than there are of", *sorted(fallen))
        print("Run `python docs/language.py --update`.")
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
