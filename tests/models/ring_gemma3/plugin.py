"""Entry point of the plugin; called once in every vLLM process."""

from ring_gemma3.settings import ARCHITECTURE


def register() -> None:
    """Register the model by name; its module is imported when a model of that name is loaded."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"ring_gemma3.model:{ARCHITECTURE}")
