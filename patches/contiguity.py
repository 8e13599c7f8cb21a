"""P3: a padded page with one head has two dimensions of the same stride; order them."""

from importlib.util import find_spec
from typing import Any

from patches.base import Function, Patch, Site

MODULE = "lmcache.v1.gpu_connector.kv_format.contiguity"


SPECS = "lmcache.v1.gpu_connector.kv_format.specs"


def _has_defect() -> bool:
    import torch
    from lmcache.v1.gpu_connector.kv_format.contiguity import attempt_permute_to_contiguous_view

    # 0.5.0 and 0.5.1 read every fused page heads first: accepted there, such a
    # page would be taken for one token, where it is refused now.
    if find_spec(f"{SPECS}.nl_x_nb_bs_nh_two_hs") is None:
        raise ImportError("this release cannot describe a fused page with tokens first")

    padded = torch.zeros(64).as_strided((2, 1, 3, 8), (32, 8, 8, 1))
    try:
        attempt_permute_to_contiguous_view(padded)
    except ValueError:
        return True
    return False


def _untied(original: Function) -> Function:
    def attempt(kv_caches: Any) -> Any:
        import torch

        if isinstance(kv_caches, torch.Tensor) and not kv_caches.is_contiguous():
            return original(_singletons_last(kv_caches))
        return original(kv_caches)

    return attempt


def _singletons_last(tensor: Any) -> Any:
    """The same memory, each dimension of size 1 behind the others of its stride.

    The release sorts dimensions by stride and keeps the order of equal ones.
    """
    strides = tensor.stride()
    many = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != 1]
    one = [dim for dim in range(tensor.dim()) if tensor.shape[dim] == 1]
    if not any(strides[a] == strides[b] for a in one for b in many):
        return tensor
    return tensor.permute(many + one)


PATCH = Patch(
    name="P3",
    summary="padded pages with one head are accepted",
    upstream="in 0.5.6; reported in https://github.com/LMCache/LMCache/issues/4771",
    retire_when="LMCache 0.5.5 is no longer supported",
    has_defect=_has_defect,
    sites=(Site((MODULE,), "attempt_permute_to_contiguous_view", _untied),),
    in_cache_server=True,
)
