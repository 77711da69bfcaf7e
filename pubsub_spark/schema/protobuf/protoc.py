"""The compiler from `.proto` text to descriptors: protoc, run by `grpc_tools.protoc` in a process of its own.

protoc recurses on its own stack and ends the process when it fails badly. In a process of its own, a crash or an
endless compilation is an InvalidSchema. All input and output goes through pipes. protoc sees the schema and the
well-known types under virtual names and no other file of the machine. It skips control characters, so a text that has
one is refused before. A compilation takes some 60 ms, so a revision is compiled once per process.

`grpcio-tools` is the extra `protoc`, because its newest release replaces a runtime's protobuf and grpcio.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from importlib import resources
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from pubsub_spark.schema.definition import ForbiddenImport, InvalidSchema

SCHEMA_FILE: Final = "schema.proto"

# The imports that a definition may have. Not `descriptor.proto`: its custom options can overflow protoc's stack.
WELL_KNOWN: Final = tuple(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)

MAX_BYTES: Final = 300_000  # Pub/Sub's own limit on a definition
# The largest definitions take up to four seconds, and a machine may be busy.
TIMEOUT_SECONDS: Final = 30
# Compiled texts kept per process: as many revisions as a schema may have (20), times a few schemas.
_CACHED_TEXTS: Final = 64

# The interpreter is isolated (`-I`) from environment variables that change its behaviour. It finds modules where this
# process does. The variable is grpc_tools' switch for its import hooks, which take time.
COMMAND: Final = (
    "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "from grpc_tools import protoc; sys.exit(protoc.main(sys.argv))"
)
_ENVIRONMENT: Final = {"GRPC_PYTHON_DISABLE_DYNAMIC_STUBS": "1"}
_PIPE_IN, _PIPE_OUT = "/dev/stdin", "/dev/stdout"

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_COMPLAINT = re.compile(
    rf"(?:{_PIPE_IN}|{SCHEMA_FILE}):(?:(?P<line>\d+):(?P<column>\d+):)? (?!warning: )(?P<message>.*)"
)
_IMPORT = re.compile(r'Import "(?P<name>.*)" was not found or had errors')


def compile_text(text: str) -> FileDescriptorSet:
    """Return the descriptors of `text` and of its imports, least dependent first.

    Raises InvalidSchema with the place of the error, and ModuleNotFoundError without the extra `protoc`.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidSchema(f"The definition is longer than {MAX_BYTES:,} bytes")
    if control := _CONTROL.search(text):
        line, start = text.count("\n", 0, control.start()) + 1, text.rfind("\n", 0, control.start())
        raise InvalidSchema(f"The definition has a control character at line {line}, column {control.start() - start}")
    try:
        return FileDescriptorSet.FromString(run_compiler(text))
    except DecodeError:  # from a protoc that nests deeper than protobuf reads
        raise InvalidSchema("The definition is nested too deeply") from None


@lru_cache(_CACHED_TEXTS)
def run_compiler(text: str) -> bytes:
    try:
        source = text.encode()
    except UnicodeEncodeError:
        raise InvalidSchema("The definition has characters that UTF-8 cannot express") from None
    try:
        well_known_types = resources.files("grpc_tools") / "_proto"
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Protobuf schemas need `grpcio-tools`. Install pubsub-spark with its extra `protoc`", name="grpc_tools"
        ) from None
    command = [sys.executable, "-I", "-c", COMMAND, "\n".join(filter(None, sys.path))]
    arguments = [
        f"--proto_path={SCHEMA_FILE}={_PIPE_IN}",
        *(f"--proto_path={name}={name}" for name in WELL_KNOWN),  # relative to the working directory
        "--include_imports",
        f"--descriptor_set_out={_PIPE_OUT}",
        SCHEMA_FILE,
    ]
    try:
        protoc = subprocess.run(  # noqa: S603 (constants, and the text goes through the pipe)
            [*command, *arguments],
            input=source,
            capture_output=True,
            cwd=str(well_known_types),
            env=os.environ | _ENVIRONMENT,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidSchema(
            f"The definition cannot be compiled: protoc did not end in {TIMEOUT_SECONDS} seconds"
        ) from None
    if protoc.returncode != 0:
        raise _error(protoc.stderr.decode("utf-8", "replace"), protoc.returncode)
    return protoc.stdout


def _error(stderr: str, returncode: int) -> InvalidSchema:
    """Return the first of protoc's complaints about the schema's own text, with its place there."""
    complaint = next(filter(None, map(_COMPLAINT.fullmatch, stderr.splitlines())), None)
    if complaint is None:
        why = f"protoc was ended by signal {-returncode}" if returncode < 0 else " ".join(stderr.split()[-50:])
        return InvalidSchema(f"The definition cannot be compiled: {why}")
    message = complaint["message"].rstrip(".")
    if imported := _IMPORT.fullmatch(message):
        allowed = ", ".join(f"`{name}`" for name in WELL_KNOWN)
        sentence = f"The definition imports `{imported['name']}`, and only {allowed} can be imported"
        return ForbiddenImport(sentence, imported["name"])
    position = f" at line {complaint['line']}, column {complaint['column']}" if complaint["line"] else ""
    return InvalidSchema(f"The definition is wrong{position}: {message}")
