"""The buckets of the emulator: the mapping of their names to `--storage-root`.

A root is a folder (a path or `file://`), `gs://` or `s3://`. In a folder, each bucket is an existing folder. With
`gs://` or `s3://`, a bucket is the bucket of that name. `s3://BUCKET/PREFIX` puts them all into one real bucket.
Credentials and endpoints are those of the environment, as obstore reads them. Objects are written at once and whole.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, from_url

from pubsub_spark.emulator.sinks.destination import DestinationError

_SCHEMES = ("file", "gs", "s3")
_DENIED = (PermissionError, PermissionDeniedError, UnauthenticatedError)


class StorageRoot:
    """An invalid root raises OSError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._folder: Path | None = None
        self._url = url.rstrip("/") + "/" if parts.netloc else f"{parts.scheme}://"
        if parts.scheme in ("", "file"):
            self._folder = Path(url2pathname(parts.path) if parts.scheme else url)
            if not self._folder.is_dir():
                raise OSError(f"The storage root `{url}` is not a folder. Create it, with a folder for each bucket.")
        elif parts.scheme not in _SCHEMES:
            raise OSError(
                f"The storage root `{url}` is not of {', '.join(_SCHEMES)}. Set a folder, or a URL of one of those."
            )

    def open(self, bucket: str) -> ObjectStore:
        """Raise DestinationError if the bucket's folder is missing, OSError if opening fails."""
        if self._folder is None:
            try:
                return from_url(f"{self._url}{bucket}")
            except BaseError as problem:  # unreadable credentials or endpoint of the environment
                raise OSError(f"The bucket `{bucket}` cannot be opened: {first_line(problem)}") from None
        folder = self._folder / bucket
        if not folder.is_dir():
            raise DestinationError("NOT_FOUND", f"The bucket `{bucket}` does not exist. Create the folder `{folder}`.")
        return LocalStore(folder)

    def put(self, bucket: str, name: str, content: bytes) -> None:
        """Raise DestinationError if the bucket cannot be written, OSError otherwise."""
        store = self.open(bucket)
        try:
            obstore.put(store, name, content)
        except (FileNotFoundError, NotFoundError) as problem:
            raise DestinationError(
                "NOT_FOUND", f"The bucket `{bucket}` does not exist. Create it ({first_line(problem)})."
            ) from None
        except _DENIED as problem:
            raise DestinationError(
                "PERMISSION_DENIED", f"The bucket `{bucket}` may not be written. Grant access ({first_line(problem)})."
            ) from None
        except ValueError as problem:  # `a//b` and `../a` are names in Cloud Storage, but obstore cannot write them
            sentence = f"The bucket `{bucket}` takes no object `{name}` here. Rename it ({first_line(problem)})."
            raise DestinationError("PERMISSION_DENIED", sentence) from None
        except BaseError as problem:
            if "Permission denied" in str(problem):  # of a local file: obstore has no error class for it
                raise DestinationError(
                    "PERMISSION_DENIED", f"The bucket `{bucket}` may not be written. Grant access ({name})."
                ) from None
            raise OSError(f"The bucket `{bucket}` cannot be written now: {first_line(problem)}") from None


def first_line(problem: Exception) -> str:
    """The other lines of obstore's errors are for debugging."""
    return str(problem).partition("\n")[0]
