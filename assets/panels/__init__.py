"""Scripts and styles of the panels, fetched when one is first opened."""
