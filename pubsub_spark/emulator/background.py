"""The process that `pubsub-spark emulator start` leaves behind: `serve`, with its options as JSON.

The caller waits for it. Therefore it imports neither the command line nor the clients of google.pubsub_v1.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from pubsub_spark.emulator.api.messages_alone import import_messages
from pubsub_spark.emulator.options import ServeOptions


def main(options: str) -> int:
    """Serve with the fields of ServeOptions, a JSON object, and return the exit code."""
    gc.disable()  # for the imports: a tenth of their time, and all of it stays
    import_messages()
    try:
        from pubsub_spark.emulator.serve import serve
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    gc.freeze()
    gc.enable()
    serve_options = ServeOptions(**json.loads(options))
    if serve_options.config is not None:
        serve_options.config = Path(serve_options.config)
    return serve(serve_options)
