"""Pages, the prefix caches over them, and the KV tensors they stand for."""

from octavo.engine.memory.kv_cache import KVCache
from octavo.engine.memory.pool import PagePool
from octavo.engine.memory.prefix import Match, NoCache, PrefixCache
from octavo.engine.memory.radix import RadixTree
from octavo.engine.memory.slots import SlotCache

__all__ = ["KVCache", "Match", "NoCache", "PagePool", "PrefixCache", "RadixTree", "SlotCache"]
