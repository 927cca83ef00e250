"""The page that asks another device of the household for the key, once. Its files need no key; they say nothing."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from octavo.app.config import Settings
from octavo.app.ui.strings import LANGUAGES, choose_language

FILES = ("/ui/tokens.css", "/ui/enter.css", "/ui/enter.js", "/ui/icon.svg", "/manifest.json")
WORDS = ("wrong", "wait", "unreachable")  # said by the script


def make_door(settings: Settings) -> Callable[[str], str]:
    """A function of the request's Accept-Language that gives the page."""

    def door(accept_language: str) -> str:
        language = choose_language(settings.values.app.language, accept_language)
        words = {name: escape(text) for name, text in LANGUAGES[language].items() if name.startswith("enter")}
        said = " ".join(f'data-{name}="{words[f"enter.{name}"]}"' for name in WORDS)
        theme = settings.values.app.theme
        chosen = f' data-theme="{theme}"' if theme in ("light", "dark") else ""
        return f"""<!doctype html>
<html lang="{language}"{chosen}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Octavo</title>
<link rel="icon" type="image/svg+xml" href="/ui/icon.svg">
<link rel="stylesheet" href="/ui/tokens.css">
<link rel="stylesheet" href="/ui/enter.css">
<script type="module" src="/ui/enter.js"></script>
</head>
<body>
<main>
<img src="/ui/icon.svg" alt="" width="48" height="48">
<h1>{words["enter"]}</h1>
<p>{words["enter.text"]}</p>
<form {said}>
<label for="key">{words["enter.key"]}</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button type="submit">{words["enter.do"]}</button>
<p class="problem" role="alert"></p>
</form>
</main>
</body>
</html>
"""

    return door
