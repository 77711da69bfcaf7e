"""The options of a channel: proxies, and the addresses that bypass them."""

import threading
from unittest.mock import MagicMock

import pytest

from pubsub_spark.backend.connection import Connection, channel_options, proxy_variable
from pubsub_spark.errors import ServiceError

PROXIES = {"https_proxy": "http://u:p@proxy:3128", "http_proxy": "http://proxy:3128"}


@pytest.mark.parametrize("address", ["localhost:8085", "127.0.0.1:8085", "[::1]:8085", "0.0.0.0:8085"])
def test_this_machine_is_not_called_through_a_proxy(address: str):
    assert 0 == dict(channel_options(address))["grpc.enable_http_proxy"]
    assert proxy_variable(address, PROXIES) is None


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({}, None),
        (PROXIES, "https_proxy"),
        (PROXIES | {"grpc_proxy": "http://other:1"}, "grpc_proxy"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, None),
        (PROXIES | {"no_proxy": "internal, googleapis.com"}, None),
        (PROXIES | {"no_proxy": "googleapis.com", "no_grpc_proxy": "internal"}, "https_proxy"),
    ],
)
def test_the_variable_of_the_proxy(environ: dict[str, str], variable: str | None):
    """As gRPC reads them: in lower case only, its own ones first."""
    assert 1 == dict(channel_options("pubsub.googleapis.com:443"))["grpc.enable_http_proxy"]
    assert variable == proxy_variable("pubsub.googleapis.com:443", environ)


def test_channel_that_cannot_be_closed_is_left():
    """gRPC waits for ever for a call that it had no thread for. Spark stops a reader before it reports its error."""
    channel, over = MagicMock(), threading.Event()
    channel.close.side_effect = over.wait
    Connection(channel, "127.0.0.1:1", 1.0).close(timeout=0.01)

    over.set()


def test_process_without_a_thread_for_a_call_is_told():
    """gRPC serves no call of the channel after that, also when there are threads again."""
    channel = MagicMock()
    channel.unary_unary.return_value.future.side_effect = [RuntimeError("can't start new thread"), None]
    broken = Connection(channel, "127.0.0.1:1", 1.0)
    for call in (broken.acknowledge, broken.modify_ack_deadline):
        with pytest.raises(ServiceError, match=r"could not start a thread .* limit of threads"):
            call("projects/p/subscriptions/s", b"", 1.0)
