"""The inference engine: no web, no page, no config file; usable alone.

from octavo.engine import Engine
engine = Engine.load("path/to/model")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.config import EngineConfig
    from octavo.engine.engine import Engine
    from octavo.engine.request import SamplingParams

__all__ = ["Engine", "EngineConfig", "SamplingParams"]


def __getattr__(name: str) -> Any:  # torch is imported only once the engine is used
    if name == "Engine":
        from octavo.engine.engine import Engine

        return Engine
    if name == "EngineConfig":
        from octavo.engine.config import EngineConfig

        return EngineConfig
    if name == "SamplingParams":
        from octavo.engine.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
