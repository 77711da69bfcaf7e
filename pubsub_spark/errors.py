"""The errors of the connector, by the role that can fix the problem.

    PubSubError
    ├── OptionsError        the caller
    ├── AsyncApiError       the author of the document of `asyncapi` and `apply`
    ├── DataError           the owner of the data
    │   ├── RowError
    │   └── SchemaError
    ├── ResourceError       the owner of the project
    │   ├── MissingError
    │   ├── InvalidError
    │   └── ForbiddenError
    ├── StagingError        the operator of the cluster
    │   ├── MissingFile
    │   └── DamagedFile
    └── ServiceError        Pub/Sub itself

Each message is one or two sentences: what happened, to which resource (full name, in backticks), what to do. Errors
cross process boundaries as text, so the sentence is all there is.
"""

from __future__ import annotations

from collections.abc import Sequence


class PubSubError(Exception):
    """The base of all errors that the connector raises on purpose."""


class OptionsError(PubSubError):
    """The options of `format("pubsub")` cannot work. Lists every problem found."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        super().__init__(f'format("pubsub") has {count} in its options:\n' + "\n".join(f"  {p}" for p in problems))

    def __reduce__(self) -> tuple[type[OptionsError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class AsyncApiError(PubSubError):
    """An AsyncAPI document cannot be used. problems: a sentence each, with its position."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        super().__init__(f"`{path}` has {count}:\n" + "\n".join(f"  {problem}" for problem in problems))

    def __reduce__(self) -> tuple[type[AsyncApiError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.path, self.problems)


class DataError(PubSubError):
    """A row cannot be published, or a payload cannot be decoded."""


class RowError(DataError):
    """One of the rows handed over, counted from 0, cannot be encoded. The task adds its number in the partition."""

    def __init__(self, row: int, complaint: str) -> None:
        self.row = row
        self.complaint = complaint
        super().__init__(f"Row {row}: {complaint}")

    def __reduce__(self) -> tuple[type[RowError], tuple[int, str]]:
        return type(self), (self.row, self.complaint)


class SchemaError(DataError):
    """A schema is not found, not supported, or does not fit the columns."""


class ResourceError(PubSubError):
    """A topic, subscription or schema cannot be used for the call."""


class MissingError(ResourceError):
    """A topic, subscription or schema does not exist."""


class InvalidError(ResourceError):
    """The service refuses the name or the settings of a topic, subscription or schema: no other try can do better."""


class ForbiddenError(ResourceError):
    """The caller has no permission for the call."""


class StagingError(PubSubError):
    """The staging area cannot be seen by executors, or a batch that it held is gone."""


class MissingFile(StagingError):  # noqa: N818 - it says what is missing
    """A file of the staging area does not exist any more."""

    def __init__(self, path: str, location: str) -> None:
        self.path = path
        self.location = location
        super().__init__(
            f"The staged file `{path}` is gone from `{location}`. Exclude `stagingLocation` from cleanup jobs and "
            "lifecycle rules, and start the query again."
        )

    def __reduce__(self) -> tuple[type[MissingFile], tuple[str, str]]:
        return type(self), (self.path, self.location)


class DamagedFile(StagingError):  # noqa: N818
    """A file of the staging area is empty, truncated or not of our format. reason: its parser's message."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"The staged file `{path}` is damaged ({reason}). Stop the query and remove its stream with `pubsub-spark "
            "staging clean`. Pub/Sub redelivers its unacknowledged messages."
        )

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[str, str]]:
        return type(self), (self.path, self.reason)


class ServiceError(PubSubError):
    """Pub/Sub did not answer in time, or kept failing."""
