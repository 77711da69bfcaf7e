"""The rules of resources: names, limits, field masks, pages, filters, defaults. Pure functions on protobuf messages."""
