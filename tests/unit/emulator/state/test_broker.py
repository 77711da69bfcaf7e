"""The rule that only the broker changes messages, which the code outside of `state` keeps."""

from __future__ import annotations

import ast
from pathlib import Path

import pubsub_spark.emulator

RECORDS = {"subscription", "topic", "snapshot"}
READ_ONLY = {"deliveries", "due", "unacked"}  # methods that change nothing


def test_nobody_else_changes_topics_subscriptions_and_snapshots():
    """Outside of `state` no method of such a record is called, and none of its attributes is set."""
    root = Path(pubsub_spark.emulator.__file__).parent
    wrong = [
        f"{path.relative_to(root)}:{node.lineno} {ast.unparse(node)}"
        for path in sorted(root.rglob("*.py"))
        if path.parent.name not in ("state", "resources") and path.name != "seed_file.py"  # protobuf messages there
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and _named(node.value) in RECORDS and _changes(node))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _named(node.func.value) in RECORDS
            and node.func.attr not in READ_ONLY
            and _named(node.func.value) == "subscription"
        )
    ]

    assert [] == wrong


def _changes(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)


def _named(node: ast.expr) -> str:
    """Return the name at the end of `subscription`, `self.subscription`, `self._subscription`."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.removeprefix("_")
