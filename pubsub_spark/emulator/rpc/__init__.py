"""The dispatch of a call to its handler, whichever transport brought it."""
