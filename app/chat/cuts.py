"""What cuts a reply off that nobody asked to stop. It is stored with the reply, which says so from then on."""

from __future__ import annotations

from typing import Literal

Cut = Literal["interrupted", "closed", "restarted", "gpu_lost"]

# By the code under which the page has its own words.
SENTENCES: dict[Cut, str] = {
    "interrupted": "Octavo ended unexpectedly while this was being written. What was saved by then is kept.",
    "closed": "Octavo was closed while this was being written. What is here is kept.",
    "restarted": "Octavo was restarted while this was being written. What is here is kept.",
    "gpu_lost": "The GPU stopped answering while this was being written. What is here is kept.",
}
