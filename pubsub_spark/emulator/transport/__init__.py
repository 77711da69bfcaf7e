"""The protocols of the one port: gRPC, and the JSON API over HTTP."""
