"""Conversations: where they are stored, how replies are generated for them, how they fit the window."""
