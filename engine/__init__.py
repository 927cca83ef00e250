"""The inference engine: no web, no page, no config file; usable alone (`from octavo.engine import Engine`)."""
