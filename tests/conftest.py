"""Environment of every test process and of the engines they start."""

import os

DEFAULTS = {
    "PYTHONHASHSEED": "0",  # for child processes; the Makefile sets it for this one
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
