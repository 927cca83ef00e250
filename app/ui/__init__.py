"""The Gradio page, a module a panel."""
