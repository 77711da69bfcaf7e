"""The RPC handlers, one class for each service."""
