"""The broker's state: topics, subscriptions, messages, leases, schemas. Pure: no lock, I/O, protobuf or clock."""
