"""Weight formats, one module a format, one interface."""
