"""The state of the broker: topics, subscriptions, messages, leases, schemas. Pure: no lock, no protobuf, no clock."""
