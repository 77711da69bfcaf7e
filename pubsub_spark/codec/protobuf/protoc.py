"""`.proto` text to descriptors, with the compiler of grpcio-tools inside this process.

protoc is C++: it reads files, keeps global state, and its parser recurses on its own stack. So one lock, a folder of
our own, and a look at the text before it goes in: control characters (which protoc skips) and nesting that no person
wrote (which ends the process) are refused here. It finds nothing to import but the well-known types below.

Errors come from `get_protos`, the entry that `grpc.protos()` uses: it raises them, where the compiler's `main` prints
them on the process's standard error. Descriptors come from `main`, asked only when there are no errors. Both are taken
from the extension itself: its wrapper `grpc_tools.protoc` hangs import hooks into the process that imports it.
"""

from __future__ import annotations

import re
import tempfile
import threading
from importlib import resources
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import _protoc_compiler

from pubsub_spark.codec.definition import InvalidSchema

SCHEMA_FILE: Final = "schema.proto"
# What protoc is asked for: it warns, on standard error, of imports that go unused in that file, but not in those below.
_ROOT_FILE: Final = "root.proto"
_ROOT: Final = f'syntax = "proto3"; import public "{SCHEMA_FILE}";'

# What a definition may import. Not `descriptor.proto`: with it come custom options, which can overflow protoc's stack.
WELL_KNOWN: Final = tuple(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)

# Pub/Sub's own limit on a definition, and a depth that protoc's parser (about 20,000 levels) survives by far.
MAX_BYTES: Final = 300_000
MAX_NESTING: Final = 200

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
# Comments and strings are taken whole, unterminated ones to where protoc's tokenizer ends them: brackets are brackets.
_BRACKET = re.compile(
    r"""//[^\n]*|/\*(?s:.*?)\*/|/\*(?s:.*)|"(?:\\[^\n]|[^"\\\n])*"?|'(?:\\[^\n]|[^'\\\n])*'?|[{}()<>\[\]]"""
)
_SYNTAX = re.compile(r"\ufeff?(?:\s|//[^\n]*(?:\n|$)|/\*(?s:.*?)\*/)*(?P<keyword>syntax|edition)\b")

_lock = threading.Lock()


def compile_text(text: str) -> FileDescriptorSet:
    """The descriptors of `text` and of what it imports, least dependent first; InvalidSchema says where it is wrong."""
    _check(text)
    declared = _SYNTAX.match(text)
    if declared and declared["keyword"] == "edition":
        raise InvalidSchema(
            'The definition is of an edition; Pub/Sub knows `syntax = "proto2"` and `syntax = "proto3"`'
        )
    # Said aloud, because protoc warns of a missing syntax on standard error. On the first line: numbers stay right.
    source = text if declared else 'syntax = "proto2"; ' + text.removeprefix("\ufeff")
    with _lock, tempfile.TemporaryDirectory(prefix="pubsub-spark-protoc-") as folder:
        return _run(source, Path(folder))


def _check(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidSchema(f"The definition is longer than {MAX_BYTES:,} bytes")
    if control := _CONTROL.search(text):
        raise InvalidSchema(f"The definition has a control character at {_position(text, control.start())}")
    depth = 0
    for token in _BRACKET.finditer(text):
        if token[0] in "{([<":
            depth += 1
        elif token[0] in "})]>":
            depth = max(0, depth - 1)
        if depth > MAX_NESTING:
            raise InvalidSchema(f"The definition is nested deeper than {MAX_NESTING} levels")


def _position(text: str, index: int) -> str:
    before = text[:index]
    return f"line {before.count(chr(10)) + 1}, column {index - before.rfind(chr(10))}"


def _run(source: str, folder: Path) -> FileDescriptorSet:
    library = resources.files("grpc_tools") / "_proto"
    for name in WELL_KNOWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((library / name).read_bytes())
    try:
        (folder / SCHEMA_FILE).write_text(source, encoding="utf-8")
    except UnicodeEncodeError:
        raise InvalidSchema("The definition has characters that UTF-8 cannot express") from None
    try:
        _protoc_compiler.get_protos(SCHEMA_FILE.encode(), [str(folder).encode()])
    except Exception as error:  # ProtocErrors; its class has no public name
        raise InvalidSchema(_sentence(error)) from None
    output = folder / "descriptors"
    (folder / _ROOT_FILE).write_text(_ROOT)
    arguments = ["protoc", f"-I{folder}", "--include_imports", f"--descriptor_set_out={output}", _ROOT_FILE]
    if _protoc_compiler.run_main([argument.encode() for argument in arguments]) != 0:
        raise InvalidSchema("The definition cannot be compiled")
    files = FileDescriptorSet.FromString(output.read_bytes())
    del files.file[-1]  # the root
    return files


def _sentence(error: Exception) -> str:
    """The first complaint that is about the schema's own file, with its place."""
    found = error.args[0] if error.args and isinstance(error.args[0], list) else []
    complaints = [complaint for complaint in found if _text(complaint.filename) == SCHEMA_FILE]
    if not complaints:
        return f"The definition cannot be compiled: {error}"
    message = _text(complaints[0].message).rstrip(".")
    if imported := re.match(r'Import "(.*)" was not found or had errors', message):
        allowed = ", ".join(f"`{name}`" for name in WELL_KNOWN)
        return f"The definition imports `{imported[1]}`, and only {allowed} can be imported"
    return f"The definition is wrong at line {complaints[0].line + 1}, column {complaints[0].column + 1}: {message}"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
