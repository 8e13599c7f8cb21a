"""What every LMCache release does with vLLM's KV-cache groups.

``releases.toml`` pins the releases, ``expected/`` holds what each is known to
get wrong, ``cases`` ask the questions and know the right answers, ``probe``
asks one release in a process of its own.
"""
