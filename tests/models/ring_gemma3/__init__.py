"""A Gemma3 with a scratch ring: a KV-cache group that is not prefix-cacheable and matters.

vLLM plugin, found through the dist-info directory beside this package: start servers with
`plugin_environment(os.environ)`, and for an engine in this process set its `PYTHONPATH` and put
`plugin_directory()` on `sys.path`. Serve what `write_ring_model` wrote
with `enforce_eager=True`: compiled, the branch for a forward pass without metadata is baked in and
the ring is silently off.

Importing this package loads neither torch nor vLLM.
"""

from ring_gemma3.checkpoint import plugin_directory, plugin_environment, write_ring_model
from ring_gemma3.settings import RingSettings

__all__ = ["RingSettings", "plugin_directory", "plugin_environment", "write_ring_model"]
