"""What the user sees: command line, server, page. Imports the engine, never the other way round."""
