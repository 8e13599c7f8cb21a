"""Ask an LMCache release which device it takes: ``python -m tests.compat.device_plugin``.

The release and our entry point are found through the path. Each question is asked in
a fork, because LMCache decides once per process; a CUDA device is a pretended one.
Answers come as JSON on standard output.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

VARIABLE = "LMCACHE_DEVICE_BACKEND"


def choice() -> dict[str, Any]:
    """What LMCache chose, and what of ours it imported for that."""
    from lmcache.v1 import platform

    return {
        "type": platform.torch_device_type,
        "backend": platform.current_device_spec.backend_name,
        "cuda": platform._resolve_device_spec("cuda").backend_name,
        "known": "cuda-sm70" in platform._DEVICE_REGISTRY,
        "ours": sorted(name for name in sys.modules if name.startswith("lmc_grouped.")),
    }


def without_cuda() -> dict[str, Any]:
    """A machine without CUDA."""
    return choice()


def with_cuda() -> dict[str, Any]:
    """A CUDA user who never heard of us."""
    with pretended_cuda():
        return choice()


def cuda_by_name() -> dict[str, Any]:
    """One who names LMCache's own device."""
    os.environ[VARIABLE] = "cuda"
    with pretended_cuda():
        return choice()


def ours_by_name() -> dict[str, Any]:
    """One who names ours."""
    os.environ[VARIABLE] = " CUDA-SM70 "  # LMCache strips and lowers it
    with pretended_cuda():
        return choice() | _operations()


def ours_without_cuda() -> dict[str, Any]:
    """Named where there is no CUDA."""
    os.environ[VARIABLE] = "cuda-sm70"
    return choice()


def always_available() -> dict[str, Any]:
    """The control: a device of ours that would not wait to be named."""
    name = "lmc_grouped.adapters.lmcache_device.is_selected"
    with pretended_cuda(), mock.patch(name, return_value=True):
        return choice()


def layouts() -> dict[str, Any]:
    """Our block copies beside this release's."""
    os.environ[VARIABLE] = "cuda-sm70"
    with pretended_cuda():
        import lmcache  # noqa: F401 (it imports our operations; we must not be first)

        from lmc_grouped.adapters.lmcache_device_ops import CudaSm70Ops
        from tests.adapters import device_layouts

        transfer = CudaSm70Ops().multi_layer_block_kv_transfer

        def lossy(*args: Any) -> None:
            transfer(*args[:2], list(args[2])[:-1], *args[3:])

        return {
            "served": device_layouts.known_layouts(),
            "disagreements": device_layouts.disagreements(transfer, seeds=2),
            "control": len(device_layouts.disagreements(lossy, seeds=1)),
        }


def _operations() -> dict[str, Any]:
    """The operations that LMCache would use."""
    from lmcache.v1 import platform
    from lmcache.v1.multiprocess.transfer_context import base

    ops = platform.resolve_device_ops("cuda")
    spec = platform.current_device_spec
    driven = getattr(spec, "default_mp_transfer_mode", None)
    return {
        "ops": type(ops).__name__,
        "native": "lmcache.cuda_ops" in sys.modules,
        "takes tensors": accepts_tensors(base, ops.multi_layer_block_kv_transfer),
        "plans": hasattr(ops, "execute_object_group_transfer"),
        "mode": "" if driven is None else driven().value,
        "wrapper": failure(lambda: platform.resolve_kv_wrapper_factory("cuda")),
    }


def accepts_tensors(base: Any, transfer: Any) -> bool:
    """LMCache's own look at the annotation; 0.5.4 and 0.5.5 look at the chosen operation."""
    detect = base._detect_block_transfer_accepts_tensor
    return bool(detect(transfer) if inspect.signature(detect).parameters else detect())


def failure(ask: Callable[[], Any]) -> str:
    """The name and text of what is raised, or nothing."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the answer)
        return f"{type(error).__name__}: {error}"
    return ""


def pretended_cuda() -> Any:
    """torch as it is built for CUDA, with a device."""
    return mock.patch.multiple(
        torch,
        version=mock.Mock(cuda="12.8", hip=None),
        cuda=mock.Mock(wraps=torch.cuda, is_available=lambda: True),
    )


QUESTIONS = (
    without_cuda,
    with_cuda,
    cuda_by_name,
    ours_by_name,
    ours_without_cuda,
    always_available,
    layouts,
)


def main() -> int:
    """Ask all questions; exit status 1 when a fork gave no answer."""
    answers = {question.__name__: _in_a_fork(question) for question in QUESTIONS}
    sys.stdout.write(json.dumps(answers))
    return 0


def _in_a_fork(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    reading, writing = os.pipe()
    if not os.fork():
        os.environ.pop(VARIABLE, None)
        answer: dict[str, Any] = {}
        answer["failure"] = failure(lambda: answer.update(question()))
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text or '{"failure": "the fork died"}')


if __name__ == "__main__":
    sys.exit(main())
