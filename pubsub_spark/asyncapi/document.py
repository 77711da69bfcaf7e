"""An AsyncAPI document as values that know their position: file, path and line.

YAML is read by PyYAML. JSON is YAML, and types that JSON lacks, such as dates, are text. A `$ref` is followed inside
the document and into other files, never to the network. A circle of references is an error. A file ending in `.proto`
is one text. One AsyncApiError has all complaints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from ..errors import AsyncApiError

_MOST_BYTES = 10 * 2**20  # of one file
_MOST_VALUES = 500_000  # of all files: aliases repeat values, and a few lines of them can be millions
_TEXT_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "binary", "merge", "value")}


@dataclass(frozen=True)
class Value:
    """A value of a document or None, and its position. keys: the path from the root of its file."""

    value: Any
    documents: Documents = field(repr=False)
    file: Path
    keys: tuple[str | int, ...] = ()

    def __bool__(self) -> bool:
        return self.value is not None

    @property
    def position(self) -> str:
        """The file (if it is not the document's own), line and path."""
        path = ".".join(map(str, self.keys)) or "the document"
        file = "" if self.file == self.documents.root else f"`{self.file}`, "
        return f"{file}line {self.documents.line(self.file, self.keys)}, `{path}`"

    def get(self, *keys: str) -> Value:
        """Return the value under these keys, each `$ref` on the way followed."""
        target = self.followed()
        for key in keys:
            value = target.value.get(key) if isinstance(target.value, dict) else None
            target = Value(value, self.documents, target.file, (*target.keys, key)).followed()
        return target

    def entries(self) -> Iterator[tuple[str, Value]]:
        """Yield the entries of a mapping, or of a list by their index. References are not followed."""
        target = self.followed()
        keys: Iterable[str | int] = target.value if isinstance(target.value, dict) else ()
        if isinstance(target.value, list):
            keys = range(len(target.value))
        for key in keys:
            yield str(key), Value(target.value[key], self.documents, target.file, (*target.keys, key))

    def followed(self) -> Value:
        """Return the value that a `$ref` leads to, or the value itself. A `$ref` that leads nowhere is a complaint."""
        current, seen = self, {(self.file, self.keys)}
        while isinstance(current.value, dict) and isinstance(current.value.get("$ref"), str):
            target = self.documents.target(current, current.value["$ref"])
            if target is None or (target.file, target.keys) in seen:
                if target is not None:
                    self.complain(f"`$ref` to `{current.value['$ref']}` leads back to itself")
                return Value(None, self.documents, self.file, self.keys)
            seen.add((target.file, target.keys))
            current = target
        if isinstance(current.value, dict) and not isinstance(current.value.get("$ref", ""), str):
            current.complain("`$ref` must be a text")
        return current

    def complain(self, sentence: str) -> None:
        """Add a complaint about this value, once."""
        complaint = f"{self.position}: {sentence}."
        if complaint not in self.documents.problems:
            self.documents.problems.append(complaint)

    def text(self, *keys: str, default: str | None = None) -> str | None:
        """A value of another type than text is a complaint."""
        target = self.get(*keys)
        if target.value is None or isinstance(target.value, str):
            return default if target.value is None else target.value
        target.complain(f"this must be a text, got {type(target.value).__name__}")
        return default


@dataclass
class Documents:
    """A document with the files that it refers to, and the complaints so far."""

    root: Path
    problems: list[str] = field(default_factory=list)
    _files: dict[Path, Any] = field(default_factory=dict)
    _lines: dict[tuple[Path, tuple[str | int, ...]], int] = field(default_factory=dict)

    @cached_property
    def content(self) -> Value:
        """The whole document. Raises AsyncApiError if it cannot be read."""
        value = self._read(self.root, None)
        if not isinstance(value, dict):
            raise AsyncApiError(str(self.root), self.problems or ["this must be a mapping with `asyncapi`."])
        return Value(value, self, self.root)

    @property
    def is_version_2(self) -> bool:
        return (self.content.text("asyncapi") or "").startswith("2")

    def line(self, file: Path, keys: tuple[str | int, ...]) -> int:
        """Return the line of a value, or of the nearest one above it."""
        while keys and (file, keys) not in self._lines:
            keys = keys[:-1]
        return self._lines.get((file, keys), 1)

    def target(self, source: Value, reference: str) -> Value | None:
        """Return the value that a reference names, or None and add a complaint."""
        if "://" in reference.partition("#")[0]:
            source.complain(f"`$ref` to `{reference}` would need the network. Refer to a file")
            return None
        name, _, pointer = reference.partition("#")
        file = (source.file.parent / name).resolve() if name else source.file
        value: Any = self._read(file, source)
        keys: tuple[str | int, ...] = ()
        if pointer and not pointer.startswith("/"):
            value = None
        for part in (part.replace("~1", "/").replace("~0", "~") for part in unquote(pointer).split("/")[1:]):
            key: str | int = int(part) if isinstance(value, list) and part.isdigit() else part
            try:
                value, keys = value[key], (*keys, key)
            except (KeyError, IndexError, TypeError):
                value = None
                break
        if value is None:
            source.complain(f"`$ref` to `{reference}` leads nowhere")
            return None
        return Value(value, self, file, keys)

    def _read(self, file: Path, source: Value | None) -> Any:
        """Return None and add a complaint if the file cannot be read."""
        if file not in self._files:
            self._files[file] = None
            try:
                if file.stat().st_size > _MOST_BYTES:
                    raise ValueError(f"a document has {_MOST_BYTES:,} bytes at most")
                text = file.read_text(encoding="utf-8")
                if file.suffix == ".proto":
                    self._files[file] = text
                else:
                    node = yaml.compose(text, yaml.CSafeLoader)
                    self._files[file] = None if node is None else self._value(file, node, ())
            except OSError as error:
                self._complain(source, f"`{file}` cannot be read: {error.strerror}")
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                self._complain(source, f"`{file}` is neither YAML nor JSON: {' '.join(str(error).split())}")
            except RecursionError:
                problem = "is nested too deeply, or an alias (`*name`) is inside the value that it names"
                self._complain(source, f"`{file}` {problem}")
            except ValueError as error:
                self._complain(source, f"`{file}` cannot be used: {error}")
        return self._files[file]

    def _complain(self, source: Value | None, sentence: str) -> None:
        if source is None:
            self.problems.append(f"{sentence}.")
        else:
            source.complain(sentence)

    def _value(self, file: Path, node: yaml.Node, keys: tuple[str | int, ...]) -> Any:
        self._lines[file, keys] = node.start_mark.line + 1
        if len(self._lines) > _MOST_VALUES:
            raise ValueError(f"with the values that its aliases repeat, it has more than {_MOST_VALUES:,} values")
        if isinstance(node, yaml.MappingNode):
            value: dict[str, Any] = {}
            inherited: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)
                if key == "<<":
                    inherited |= self._merged(file, key_node, value_node, keys)
                    continue
                if key in value:
                    raise ValueError(f"`{key}` stands twice in one mapping, in line {key_node.start_mark.line + 1}")
                value[key] = self._value(file, value_node, (*keys, key))
            return inherited | value
        if isinstance(node, yaml.SequenceNode):
            return [self._value(file, item, (*keys, index)) for index, item in enumerate(node.value)]
        return node.value if node.tag in _TEXT_TAGS else _SCALARS.construct_object(node, deep=True)

    def _merged(self, file: Path, key: yaml.Node, node: yaml.Node, keys: tuple[str | int, ...]) -> dict[str, Any]:
        """Return the entries of YAML's merge key: of one mapping, or of several, the first before the others."""
        merged = self._value(file, node, keys)
        entries: dict[str, Any] = {}
        for mapping in reversed(merged if isinstance(merged, list) else [merged]):
            if not isinstance(mapping, dict):
                raise ValueError(f"`<<` in line {key.start_mark.line + 1} names no mapping")
            entries |= mapping
        return entries


_SCALARS = yaml.constructor.SafeConstructor()


def load(path: str | Path) -> Value:
    """Raises AsyncApiError if the document cannot be read or has another version than 2 or 3."""
    content = Documents(Path(path).resolve()).content
    version = content.text("asyncapi") or ""
    if version.partition(".")[0] not in ("2", "3"):
        content.get("asyncapi").complain(f"`asyncapi` must be a version 2.x or 3.x, got `{version}`")
        raise AsyncApiError(str(path), content.documents.problems)
    return content
