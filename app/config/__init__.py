"""config.yaml: its model, loading, checking, saving and watching. Knows nothing of the engine's insides."""

from octavo.app.config.errors import ConfigError, Problem
from octavo.app.config.load import Settings, changed_keys, engine_config, load_settings
from octavo.app.config.save import save
from octavo.app.config.schema import Applies, Config, applies
from octavo.app.config.sizes import Size, format_size
from octavo.app.config.watch import ConfigWatcher

__all__ = [
    "Applies",
    "Config",
    "ConfigError",
    "ConfigWatcher",
    "Problem",
    "Settings",
    "Size",
    "applies",
    "changed_keys",
    "engine_config",
    "format_size",
    "load_settings",
    "save",
]
