"""A process with the real server, the real page and a scripted engine: python serve.py FOLDER

Writes its port to FOLDER/port. While FOLDER/slow exists the model goes on loading; while FOLDER/fail exists it fails;
while FOLDER/held exists replies wait in their middle.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import uvicorn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "app" / "support")]

from scripted_engine import ScriptedEngine  # noqa: E402
from scripts import script  # noqa: E402

from octavo.app.chat.store import ChatStore  # noqa: E402
from octavo.app.config import ConfigWatcher, load_settings  # noqa: E402
from octavo.app.host import ModelHost, Report  # noqa: E402
from octavo.app.server import Server, create_app  # noqa: E402
from octavo.engine.errors import LoadError  # noqa: E402


def main(folder: Path) -> None:
    def build(source: object, config: object, report: Report) -> ScriptedEngine:
        if (folder / "fail").exists():
            raise LoadError("The file model.gguf is cut off after 12 MiB.", remedy="Download it again.")
        begun = time.monotonic()
        total = 92_871_040
        while (folder / "slow").exists():
            report("downloading", min(total, int((time.monotonic() - begun) * 9e6)), total, "Python package index")
            time.sleep(0.05)
        return ScriptedEngine(script, held=(folder / "held").exists)

    settings = load_settings(folder / "config.yaml", {}, environment={})
    host = ModelHost(find=lambda config, report: Path("starter"), build=build)
    app = create_app(settings, host, ChatStore(folder / "chats.sqlite3"), page=True)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int((folder / "port").read_text()) if (folder / "port").exists() else 0))
    listener.listen(128)
    host.load(settings.values)
    part = folder / "port.part"
    part.write_text(str(listener.getsockname()[1]), encoding="utf-8")
    part.replace(folder / "port")
    config = uvicorn.Config(
        app, ws="websockets-sansio", log_level="warning", proxy_headers=False, timeout_graceful_shutdown=1
    )
    watcher = ConfigWatcher(settings, interval_s=0.2)
    watcher.start()
    server = Server(config, on_started=lambda: None, before_shutdown=app.state.take_leave)
    app.state.stop = server.stop
    server.run(sockets=[listener])
    watcher.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
