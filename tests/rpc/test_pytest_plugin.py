"""The fixtures that the emulator offers to other people's tests."""

from __future__ import annotations

import os

from google.cloud import pubsub_v1

pytest_plugins = ["pubsub_spark.emulator.pytest_plugin"]


def test_clients_find_the_emulator_by_themselves(pubsub_emulator, pubsub_emulator_host):
    """A client made in the test talks to the emulator."""
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name="projects/p/topics/topic")
    publisher.transport.close()

    assert pubsub_emulator_host == os.environ["PUBSUB_EMULATOR_HOST"] == pubsub_emulator.endpoint
    pubsub_emulator.create_subscription("projects/p/subscriptions/sub", "projects/p/topics/topic")
    pubsub_emulator.publish("projects/p/topics/topic", "a")


def test_next_test_finds_it_empty(pubsub_emulator):
    """Resources of the test before are gone, so that they can be created again."""
    pubsub_emulator.create_topic("projects/p/topics/topic")
    pubsub_emulator.create_subscription("projects/p/subscriptions/sub", "projects/p/topics/topic")
    assert 0 == pubsub_emulator.backlog("projects/p/subscriptions/sub")
