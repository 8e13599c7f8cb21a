"""Where the types of vLLM and LMCache are translated into ours, once."""
