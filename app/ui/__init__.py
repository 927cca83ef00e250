"""The page. `mount_page` is its door: Gradio Blocks at "/", the live route, the files and words they need."""

from octavo.app.ui.page import mount_page

__all__ = ["mount_page"]
