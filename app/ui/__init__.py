"""The page. `mount_page` is its door: Gradio Blocks at "/", the live route, the files and words they need.

page      the layout (Gradio Blocks, a Column or Row a panel), files and words over HTTP
live      `/api/live`, one WebSocket a tab: commands in, changes out
hub       what all tabs share: the list of chats, the model's state, the chats that are kept drawn
feed      one chat, followed and drawn once for all who look at it; turns: one message of it
view      what one tab has of a chat, and what it still needs
render    Markdown to blocks of safe HTML while it grows; markdown, highlight, mathml: the parts of it
machine   hardware and models that would suit it, for a page without a model
strings   every word, a module an area
panels    what opens beside the conversation: settings, monitor; board: news that every tab gets at once

The parts of the page are filled by the scripts in `assets/` (page.js first); the panels are in `assets/panels/`.
"""

from octavo.app.ui.page import mount_page
from octavo.app.ui.panels import PanelDeps, add_panels

__all__ = ["PanelDeps", "add_panels", "mount_page"]
