"""The flags of `subscriptions create` and `update` for push delivery, under gcloud's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from .command import exit_with

# Parameter -> its type (`push_endpoint` is the flag `--push-endpoint`).
FLAGS: Mapping[str, Any] = {
    "push_endpoint": Annotated[
        str | None,
        typer.Option(metavar="URL", help='Push messages here, as the next flags say. Pass "" to pull them.'),
    ],
    "push_auth_service_account": Annotated[
        str | None, typer.Option(metavar="EMAIL", help="The service account of the OpenID Connect token.")
    ],
    "push_auth_token_audience": Annotated[
        str | None, typer.Option(metavar="TEXT", help="The audience of that token (default: the URL).")
    ],
    "push_no_wrapper": Annotated[
        bool | None,
        typer.Option("--push-no-wrapper/--no-push-no-wrapper", help="The body of a request is the message's data."),
    ],
    "push_no_wrapper_write_metadata": Annotated[
        bool | None,
        typer.Option(
            "--push-no-wrapper-write-metadata/--no-push-no-wrapper-write-metadata",
            help="Attributes and metadata are headers of a request.",
        ),
    ],
}
# Flag -> the one that it needs.
_NEEDS = {
    "push_auth_service_account": "push_endpoint",
    "push_auth_token_audience": "push_auth_service_account",
    "push_no_wrapper": "push_endpoint",
    "push_no_wrapper_write_metadata": "push_no_wrapper",
}


def config(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of Subscription that the flags set, empty without `--push-endpoint`. An update replaces it."""
    for flag, needed in _NEEDS.items():
        if flags[flag] and not flags[needed]:
            exit_with(f"`--{flag.replace('_', '-')}` needs `--{needed.replace('_', '-')}`.", 2)
    if flags["push_endpoint"] is None:
        return {}
    push_config: dict[str, Any] = {"push_endpoint": flags["push_endpoint"]}
    if flags["push_auth_service_account"]:
        push_config["oidc_token"] = {
            "service_account_email": flags["push_auth_service_account"],
            "audience": flags["push_auth_token_audience"] or "",
        }
    if flags["push_no_wrapper"]:
        push_config["no_wrapper"] = {"write_metadata": bool(flags["push_no_wrapper_write_metadata"])}
    return {"push_config": push_config}
