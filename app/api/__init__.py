"""OpenAI-compatible routes and the status routes beside them."""
