"""The vocabulary of the API: protobuf messages, status codes, and the error that every layer may raise."""
