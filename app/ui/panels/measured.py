"""What the two great switches change, as measured: read from the benchmark's own file.

`python -m octavo.app.ui.panels.measured docs/benchmarks/FILE.json` takes the figures of a run of
`octavo bench --compare fusion,paged_attention --workload single-stream,tabs-8 --json FILE.json` over into this package.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

NAME = "measured.json"
SWITCHES = ("paged_attention", "fusion")


@cache
def measured() -> dict[str, Any]:
    """Device, model, date and for each switch `{workload: {"on", "off"}}` in generated tokens per second."""
    text = files("octavo.app.ui.panels").joinpath(NAME).read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def extract(run: dict[str, Any], source: str) -> dict[str, Any]:
    """The figures of a run. A row counts for a switch if it differs from the first row of its workload in it alone."""
    switches: dict[str, dict[str, dict[str, float]]] = {name: {} for name in SWITCHES}
    on: dict[str, dict[str, Any]] = {}
    for row in run["rows"]:
        first = on.setdefault(row["workload"], row)
        changed = [name for name in SWITCHES if row[name] != first[name]]
        if len(changed) == 1:
            speeds = {"on": round(first["decode_tok_s"], 1), "off": round(row["decode_tok_s"], 1)}
            switches[changed[0]][row["workload"]] = speeds
    first = run["rows"][0]
    about = {"source": source, "device": run["device"], "date": run["date"], "model": first["model"]}
    return {**about, "switches": switches}


def main(path: Path) -> None:
    run = json.loads(path.read_text(encoding="utf-8"))
    out = Path(__file__).with_name(NAME)
    out.write_text(json.dumps(extract(run, path.name), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
