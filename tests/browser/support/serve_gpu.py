"""The real command with a scripted engine that says it is on a GPU: python serve_gpu.py FOLDER

Listens on the port in FOLDER/port. While FOLDER/lost exists the GPU does not answer; while FOLDER/held exists replies
wait in their middle.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "app" / "support")]

from scripted_engine import ScriptedEngine  # noqa: E402
from scripts import script  # noqa: E402

import octavo.app.gpu_watch as gpu_watch  # noqa: E402
import octavo.app.server as server  # noqa: E402
from octavo.app.cli import main  # noqa: E402
from octavo.app.host import ModelHost  # noqa: E402

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    gpu_watch.gpu_answers = lambda device: not (folder / "lost").exists()
    server.ModelHost = lambda: ModelHost(  # type: ignore[misc, assignment]
        find=lambda config, report: Path("starter"),
        build=lambda *_: ScriptedEngine(script, device="cuda:0", held=(folder / "held").exists),
    )
    port = (folder / "port").read_text(encoding="utf-8")
    sys.argv[1:] = ["--config", str(folder / "config.yaml"), "--no-browser", "--port", port]
    main()
