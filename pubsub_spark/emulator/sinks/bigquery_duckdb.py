"""BigQuery's tables in DuckDB files: a file for each project, a schema for each dataset.

The file is closed between inserts, so that other processes can read it. While they hold it, rows stay in the backlog.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pubsub_spark.emulator.sinks.bigquery import parts
from pubsub_spark.emulator.sinks.bigquery_rows import Row
from pubsub_spark.emulator.sinks.destination import DestinationError

# DuckDB's types -> BigQuery's. A list is REPEATED, a STRUCT a RECORD.
_TYPES = {
    "BOOLEAN": "BOOLEAN",
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), "INTEGER"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "FLOAT"),
    "VARCHAR": "STRING",
    "BLOB": "BYTES",
    "JSON": "JSON",
    "DATE": "DATE",
    "TIME": "TIME",
    "TIMESTAMP": "DATETIME",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    "STRUCT": "RECORD",
    "DECIMAL": "NUMERIC",
}


def check_root(root: Path) -> None:
    """Raise OSError if the folder or DuckDB is missing."""
    if not root.is_dir():
        raise OSError(f"The BigQuery root `{root}` is not a folder. Create it, with a DuckDB file for each project.")
    try:
        import duckdb  # noqa: F401 (whether it is there)
    except ModuleNotFoundError:
        raise OSError("BigQuery subscriptions need `duckdb`. Run `pip install duckdb`.") from None


class DuckDbTable:
    def __init__(self, root: Path, table: str) -> None:
        project, dataset, name = parts(table)
        self._path = root / f"{project}.duckdb"
        self._name = f"{_quoted(dataset)}.{_quoted(name)}"
        self._types: Mapping[str, str] = {}

    def columns(self) -> Mapping[str, str]:
        import duckdb

        missing = f"The table {self._name} does not exist in `{self._path}`. Create it there."
        if not self._path.is_file():
            raise DestinationError("NOT_FOUND", missing)
        with self._opened() as connection:
            try:
                described = connection.execute(f"DESCRIBE {self._name}").fetchall()
            except duckdb.CatalogException:
                raise DestinationError("NOT_FOUND", missing) from None
        self._types = {name: _type(type_) for name, type_, *_ in described}
        return self._types

    def insert(self, rows: Sequence[Row]) -> Sequence[int]:
        """Insert all rows at once, or one after the other if that fails."""
        values = [self._values(row) for row in rows]
        readable = [row for row in values if row is not None]
        with self._opened() as connection:
            if len(readable) == len(rows) and self._is_inserted(connection, readable):
                return ()
            return [
                index for index, row in enumerate(values) if row is None or not self._is_inserted(connection, [row])
            ]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Raise OSError if the file cannot be used now, as while another process holds it."""
        import duckdb

        try:
            with duckdb.connect(str(self._path)) as connection:
                yield connection
        except duckdb.Error as problem:
            raise OSError(f"`{self._path}` cannot be used: {problem}") from None

    def _is_inserted(self, connection: Any, rows: Sequence[Row]) -> bool:
        """Insert all rows or none."""
        import duckdb

        names = list(dict.fromkeys(name for row in rows for name in row))
        values = f"({', '.join(map(_quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        statement = f"INSERT INTO {self._name} {values if names else 'DEFAULT VALUES'}"
        connection.begin()
        try:
            connection.executemany(statement, [[row.get(name) for name in names] for row in rows])
            connection.commit()
        except (duckdb.DataError, duckdb.IntegrityError, duckdb.ProgrammingError, duckdb.NotSupportedError):
            connection.rollback()
            return False
        return True

    def _values(self, row: Row) -> Row | None:
        """Return None if the values are invalid. BYTES from JSON are decoded from base64."""
        try:
            return {
                name: base64.b64decode(value) if isinstance(value, str) and self._types[name] == "BYTES" else value
                for name, value in row.items()
            }
        except ValueError:
            return None


def _type(type_: str) -> str:
    if type_.endswith("]"):
        return "REPEATED"
    return _TYPES.get(re.split(r"[(]", type_)[0].strip(), type_)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
