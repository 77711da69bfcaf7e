"""The RPC handlers, one class for each service: parse, check, ask the broker once, reply."""
