"""Icon, style sheet and the page's own script."""
