"""The rules of resources: pure functions on protobuf messages."""
