"""Entry point of the plugin; called once in every vLLM process."""

from spans_gemma3.checkpoint import ARCHITECTURE, RING_ARCHITECTURE


def register() -> None:
    """Register both models by name; their module is imported when one of them is loaded."""
    from vllm import ModelRegistry

    for name in (ARCHITECTURE, RING_ARCHITECTURE):
        if name not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(name, f"spans_gemma3.model:{name}")
