"""The vocabulary of the API: protobuf messages, status codes, errors."""
