"""How the app is doing: figures over the last minutes, the log's last lines, and the facts for a report of a fault."""
