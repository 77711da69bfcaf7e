"""The dispatch of a call from any transport to its handler."""
