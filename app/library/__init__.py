"""Models on disk: finding, fetching and judging them."""
