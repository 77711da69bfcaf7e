"""The RPC handlers, one class a service: parse, check, ask the broker once, reply."""
