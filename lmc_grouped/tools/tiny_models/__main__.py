"""`python -m lmc_grouped.tools.tiny_models NAME DIR`: write a tiny model, say how to serve it."""

import argparse
from pathlib import Path

from lmc_grouped.tools.tiny_models import MODELS, write_tiny_model


def main() -> int:
    """Write the model named on the command line; print the serving flags it needs."""
    parser = argparse.ArgumentParser(
        prog="python -m lmc_grouped.tools.tiny_models",
        description="Write a tiny model with seeded random weights and a byte tokenizer.",
    )
    parser.add_argument("name", choices=sorted(MODELS), help="which model to write")
    parser.add_argument(
        "directory", type=Path, help="where to write it; new, empty, or an older copy"
    )
    arguments = parser.parse_args()
    try:
        written = write_tiny_model(arguments.name, arguments.directory)
    except ValueError as error:
        parser.error(str(error))
    recipe = MODELS[arguments.name]
    print(
        f"vllm serve {written} --dtype {recipe.dtype} --block-size {recipe.block_size_tokens}"
        f" --max-model-len {recipe.max_model_len_tokens}"
        f" --mamba-ssm-cache-dtype {recipe.state_dtype} --enforce-eager"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
