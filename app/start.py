"""The way from checked settings to a running server: one instance, the port, the device, then the heavy imports."""

from __future__ import annotations

import logging
import os

from octavo.app import paths, restart
from octavo.app.browser import open_page
from octavo.app.config import Applies, ConfigWatcher, Settings
from octavo.app.data_files import finish_move
from octavo.app.instance import InstanceLock
from octavo.app.logs import set_level, set_up_logging
from octavo.app.ports import listen, page_url
from octavo.app.restart import RestartNote
from octavo.app.window import Window, require_window
from octavo.engine.errors import OctavoError

log = logging.getLogger(__name__)

_OF_THE_FIRST_START = ("server.port", "server.host", "model.id", "model.device")  # flags a second start cannot apply


def start(settings: Settings, *, page: bool, window: bool = False) -> int:
    """Runs the server until it is told to stop; returns the exit code. If Octavo runs already, opens its page: 0.

    With `window` the page opens in a window of its own, and closing that ends the app.

    Raises OctavoError: the port, the data folder, a device that was asked for by name and is not there, or a running
    Octavo that was asked to be another one.
    """
    if window:
        require_window()
    if restart.is_parents_turn():  # before the log is opened: two processes cannot turn its file over
        return restart.supervise()
    set_up_logging(settings.values.app.log_level)
    for notice in settings.notices:
        log.info("%s", notice)
    opens_browser = page and settings.values.server.open_browser
    data = paths.data_dir(settings.values.app.data_folder)
    lock = InstanceLock(data)
    try:
        is_first = lock.acquire()
    except OSError as error:
        raise OctavoError(
            f"The data folder {data} cannot be written ({error.strerror or error}).",
            remedy="Make it writable, or set OCTAVO_DATA_DIR to another folder.",
        ) from error
    if not is_first:
        return _show_running(lock, settings, page, opens_browser, window)
    note = RestartNote(data)
    before = note.take()
    news: list[dict[str, object]] = [{"kind": before.reason, "at": before.at_s}] if before is not None else []
    moved = finish_move(data)
    if moved is not None:
        log.info("%s", moved)
        news.append({"kind": "moved", "text": moved})
    settings.listen(lambda keys: _changed(settings, keys))
    watcher = ConfigWatcher(settings)
    try:
        sock = listen(settings, None if before is None else before.port_to_keep(settings.values.server.port))
        port = sock.getsockname()[1]
        url = page_url(settings.values.server.host, port)
        lock.announce(port, url, page)
        if port != settings.values.server.port and settings.values.server.port != 0:
            log.info("Port %d is in use by another program; taking %d.", settings.values.server.port, port)
        _require_device(settings.values.model.device)
        os.environ.setdefault("GRADIO_TEMP_DIR", str(paths.cache_dir() / "page"))  # not in a folder shared with others
        from octavo.app.server import run_server  # imports torch and gradio, so only now

        watcher.start()
        code = run_server(
            settings,
            page=page,
            open_browser=opens_browser and not window and before is None,  # after a restart it is open already
            port=port,
            sock=sock,
            on_started=lambda: print(f"Running at {url}", flush=True),
            window=paths.cache_dir() / "window" if window else None,
            note=note,
            news=news,
        )
    finally:
        watcher.close()
        lock.release()
    return restart.again() if code == restart.CODE else code


def _changed(settings: Settings, keys: dict[str, Applies]) -> None:
    """Says what a change of config.yaml does; whoever holds the settings has it already."""
    set_level(settings.values.app.log_level)
    for key, applies in keys.items():
        when = {"live": "at once", "next request": "from the next request on"}.get(applies, f"after a {applies}")
        log.info("config.yaml: %s has changed, in force %s.", key, when)


def _show_running(lock: InstanceLock, settings: Settings, page: bool, opens_browser: bool, window: bool) -> int:
    running = lock.running()
    if running is None:
        raise OctavoError("Another Octavo is just starting or stopping.", remedy="Try again in a moment.")
    flags = [settings.places[key] for key in _OF_THE_FIRST_START if settings.sources[key] == "flag"]
    stop_first = f"Stop it first (Ctrl+C where it runs; process {running.pid}), then start again."
    if flags:
        were = "was" if len(flags) == 1 else "were"
        raise OctavoError(
            f"Octavo is already running at {running.url} (API: /v1), so {', '.join(flags)} {were} not applied.",
            remedy=f"{stop_first} A second one needs a data folder of its own (OCTAVO_DATA_DIR).",
        )
    if running.page is not None and running.page != page:
        runs, wanted = ("without its page", "app") if page else ("with its page", "serve")
        raise OctavoError(
            f"Octavo is already running at {running.url} {runs}, so {wanted} was not applied.", remedy=stop_first
        )
    print(f"Octavo is already running at {running.url}", flush=True)
    if window:
        return Window(running.url, paths.cache_dir() / "window").wait()
    if opens_browser:
        open_page(running.url)
    return 0


def _require_device(device: str) -> None:
    """A GPU that was asked for by name must be there; `auto` decides later, when the model is loaded."""
    if device.startswith("cuda"):
        from octavo.engine.run.resolve import resolve_device

        resolve_device(device)
