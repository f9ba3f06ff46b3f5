"""A rehearsal of `--device cuda` on a machine without a GPU.

    with Rehearsal() as on:
        run(cell, RunContext(run=folder, device="cuda"), Memory())
    on.mixes, on.waits, on.kernels, on.uploads

The CPU computes.  Each storage is marked as the GPU's or the host's, so that views, detached tensors and what autograd
saves have their storage's mark.  Two modes of torch look at what is called: the dispatcher's sees every operation,
below autograd and `vmap`, hands marks on and counts; the functions' sees what names a device before the dispatcher
does.  An operation that CUDA would refuse because its tensors lie on two devices raises here too, with the project's
line.

Not rehearsed: that CUDA works beside the host, kernels that it lacks, its rounding, several GPUs.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # its import is not to be seen by the modes
from torch import Tensor
from torch._C import _functorch as functorch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

GPU, HOST = "cuda", "cpu"
_aten = torch.ops.aten
# Views and allocations: no kernel is launched for them.
_NO_KERNEL = {
    "_conj",
    "_local_scalar_dense",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "diagonal",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "is_same_size",
    "lift_fresh",
    "movedim",
    "mT",
    "new_empty",
    "new_empty_strided",
    "permute",
    "resize_",
    "select",
    "set_",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "sym_size",
    "t",
    "transpose",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
    "view_as_real",
}
# The host waits for their result: a number, a size, or a factorisation's own status.
_WAITS = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "equal",
    "is_nonzero",
    "linalg_eigh",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_dim",
}
# What CUDA refuses with deterministic algorithms, and the reason that `torch.use_deterministic_algorithms` gives.
_NOT_REPEATABLE = {
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d_backward",
    "avg_pool3d_backward",
    "bincount",
    "cumsum",
    "histc",
    "kthvalue",
    "max_pool3d_with_indices_backward",
    "max_unpool2d",
    "median",
    "nanmedian",
    "nll_loss2d_forward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}
_CROSSING = {_aten.copy_, _aten._to_copy, _aten._copy_from, _aten.set_, _aten.set_data}  # may take two devices
_INDEXING = {
    _aten.index,
    _aten.index_put,
    _aten.index_put_,
    _aten._index_put_impl_,
    _aten._unsafe_index,
    _aten._unsafe_index_put,
}
_WITH_NUMBERS = {_aten.where, _aten.masked_fill, _aten.masked_fill_, _aten.fill_, _aten.addcmul}
_CONVERSIONS = {Tensor.to, Tensor.cpu, Tensor.cuda}
_FROM_HOST = {torch.tensor, torch.as_tensor, torch.asarray}
_ONE_HOT = torch._C._nn.one_hot  # type: ignore[attr-defined]
_PROPERTIES: dict[Any, Callable[[str], Any]] = {
    Tensor.device.__get__: lambda at: torch.device(at, 0) if at == GPU else torch.device(HOST),  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__: lambda at: at == GPU,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda at: at == HOST,  # type: ignore[attr-defined]
}


def line() -> str:
    """The innermost line of the project's that is at work."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.split(".")[0] == "bench":
            return f"{module}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class Generator(torch._C.Generator):
    """A generator of the host's that knows for which device it was made; a GPU's draws others from the same seed."""

    at: str

    def __new__(cls, device: Any = HOST) -> "Generator":
        made: Generator = super().__new__(cls)
        made.at = torch.device(device).type
        return made

    def manual_seed(self, seed: int) -> "Generator":
        super().manual_seed(seed ^ (0x2545F491 if self.at == GPU else 0))
        return self


class Rehearsal:
    """Where storages lie, and what was done: each a counter by (what, line), but kernels by line.

    `memory`: an allocation of more bytes on the GPU is out of memory.  `strict`: a mix of devices raises; else it is
    counted.
    """

    def __init__(self, *, strict: bool = True, memory: int | None = None) -> None:
        self.strict, self.memory = strict, memory
        self.mixes: Counter[tuple[str, str]] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.uploads: Counter[tuple[str, str]] = Counter()
        self.kernels: Counter[str] = Counter()
        self.target: str | None = None  # of the copy under way
        self.inside = False  # a call that was given a tensor of the GPU's: what it makes lies there too
        self.silent = False  # a call that does not wait on CUDA, or whose wait is counted
        self._on_gpu: dict[int, StorageWeakRef] = {}  # a weak reference keeps the address, and the memory
        self._kept = 0  # bytes marked since expired references were dropped
        self._open = ExitStack()

    def __enter__(self) -> "Rehearsal":
        answers: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "_lazy_init": lambda: None,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda *at: None,
            "get_device_name": lambda *at: "rehearsed GPU",
            "get_device_capability": lambda *at: (9, 0),
            "synchronize": lambda *at: self.wait("synchronize"),
            "empty_cache": lambda: None,
            "memory_allocated": lambda *at: 0,
            "max_memory_allocated": lambda *at: 0,
            "reset_peak_memory_stats": lambda *at: None,
            "manual_seed_all": lambda seed: None,
            "mem_get_info": lambda *at: (self.memory or 1 << 37, 1 << 37),
        }
        for name, answer in answers.items():
            self._open.enter_context(mock.patch.object(torch.cuda, name, answer))
        self._open.enter_context(mock.patch.object(torch, "Generator", Generator))
        self._open.enter_context(mock.patch("bench.graphs.possible", return_value=False))
        self._open.enter_context(mock.patch("bench.federated.stacks.on_gpu", lambda x: self.place(x) == GPU))
        self._open.enter_context(_Operations(self))
        self._open.enter_context(_Functions(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def place(self, tensor: Tensor) -> str:
        """Where a tensor lies."""
        try:
            kept = self._on_gpu.get(_bare(tensor).untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # without a storage
            return HOST
        return GPU if kept is not None and not kept.expired() else HOST

    def mark(self, made: Any, at: str) -> Any:
        """Say that these tensors lie there; raises `OutOfMemoryError` beyond the memory."""
        for tensor in _tensors(made):
            if tensor.is_meta:
                continue
            storage = _bare(tensor).untyped_storage()
            if at == HOST:
                self._on_gpu.pop(storage._cdata, None)
                continue
            if self.memory is not None and storage.nbytes() > self.memory:
                raise torch.OutOfMemoryError(f"CUDA out of memory: {storage.nbytes()} bytes in one piece")
            self._on_gpu[storage._cdata] = StorageWeakRef(storage)
            self._kept += storage.nbytes()
        if len(self._on_gpu) > 100_000 or self._kept > 1 << 29:
            self._on_gpu = {key: kept for key, kept in self._on_gpu.items() if not kept.expired()}
            self._kept = 0
        return made

    def mix(self, what: str, error: type[Exception] = RuntimeError) -> None:
        """CUDA would raise here."""
        self.mixes[what, line()] += 1
        if self.strict:
            raise error(f"{what} ({line()})")

    def wait(self, what: str) -> None:
        """The host waits for the GPU."""
        if not self.silent:
            self.waits[what, line()] += 1

    def upload(self, what: str) -> None:
        """Something goes from the host to the GPU."""
        self.uploads[what, line()] += 1


def _bare(tensor: Tensor) -> Tensor:
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (item for item in tree_iter(tree) if isinstance(item, Tensor))


class _Functions(TorchFunctionMode):
    """What names a device, or asks for one."""

    def __init__(self, on: Rehearsal) -> None:
        super().__init__()
        self.on = on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on, kwargs = self.on, dict(kwargs or {})
        inside = on.inside
        on.inside = inside or any(on.place(tensor) == GPU for tensor in _tensors((args, kwargs)))
        try:
            return self._answer(func, args, kwargs)
        finally:
            on.inside = inside

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        on = self.on
        first = args[0] if args and isinstance(args[0], Tensor) else None
        at = HOST if first is None else on.place(first)
        if getattr(func, "__name__", "") == "__get__" and func in _PROPERTIES:
            return func(*args) if first is None or first.is_meta else _PROPERTIES[func](at)
        if func is Tensor.get_device:
            return 0 if at == GPU else -1
        if func in _CONVERSIONS and first is not None and not first.is_meta:
            return self._converted(func, first, args[1:], kwargs)
        if func in (Tensor.__deepcopy__, Tensor.new_tensor):
            return on.mark(func(*args, **kwargs), at)
        if func in (Tensor.numpy, Tensor.__array__) and at == GPU:
            on.mix("a tensor of the GPU's is no numpy array", TypeError)
        if func is Tensor.tolist and at == GPU:
            on.wait("tolist")
            return self._silent(func, args, kwargs)
        if func is _ONE_HOT and at == GPU and len(args) + len(kwargs) > 1:
            return self._silent(func, args, kwargs)  # told the number of classes it does not look at the labels
        generator = kwargs.get("generator")
        if isinstance(generator, Generator) and first is not None and generator.at != at:
            on.mix(f"a generator of {generator.at} for a tensor of {at}")
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type in (GPU, HOST):
            wanted = torch.device(kwargs.pop("device")).type
            if wanted == GPU and func in _FROM_HOST:
                on.upload("tensor")
            return on.mark(func(*args, **kwargs, device=HOST), wanted)
        return func(*args, **kwargs)

    def _silent(self, func: Any, args: Any, kwargs: Any) -> Any:
        before, self.on.silent = self.on.silent, True
        try:
            return func(*args, **kwargs)
        finally:
            self.on.silent = before

    def _converted(self, func: Any, tensor: Tensor, rest: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """`to`, `cpu` and `cuda`: itself where nothing changes, else a copy that lies where it is to."""
        on, dtype, at = self.on, tensor.dtype, self.on.place(tensor)
        copy = kwargs.pop("copy", False)
        if func is not Tensor.to:
            wanted = HOST if func is Tensor.cpu else GPU
        elif (other := kwargs.get("other", rest[0] if rest else None)) is not None and isinstance(other, Tensor):
            wanted, dtype = on.place(other), other.dtype
        else:
            device, asked, _, _ = torch._C._nn._parse_to(*rest, **kwargs)  # type: ignore[attr-defined]
            if device is not None and device.type == "meta":
                return func(tensor, *rest, **kwargs)
            wanted, dtype = at if device is None else device.type, asked or dtype
        if (wanted, dtype) == (at, tensor.dtype) and not copy:
            return tensor
        if wanted != at:
            on.wait("to the host") if wanted == HOST else on.upload("to the GPU")
        before, on.target = on.target, wanted
        try:
            return Tensor.to(tensor, dtype, copy=True)
        finally:
            on.target = before


class _Operations(TorchDispatchMode):
    """Every operation, below autograd and `vmap`."""

    def __init__(self, on: Rehearsal) -> None:
        super().__init__()
        self.on = on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        on, kwargs, packet = self.on, kwargs or {}, func.overloadpacket
        tensors = list(_tensors((args, kwargs)))
        places = [on.place(tensor) for tensor in tensors]
        if GPU in places:
            self._look(func, args, kwargs, tensors, places)
        if packet is _aten.copy_ and len(places) > 1 and places[0] != places[1]:
            on.wait("copy to the host") if places[0] == HOST else on.upload("copy")
        made = func(*args, **kwargs)
        if packet.__name__ == "_local_scalar_dense" or packet in (_aten.copy_, _aten.set_):
            return made
        if not isinstance(made, Tensor | tuple | list):
            return made
        if packet in (_aten._to_copy, _aten.clone) and places:
            return on.mark(made, on.target or places[0])
        if not tensors:
            return on.mark(made, GPU) if on.inside else made
        written = any(made is tensor for tensor in tensors)
        if GPU in places and (places[0] == GPU or not written):
            on.mark(made, GPU)
        return made

    def _look(self, func: Any, args: Any, kwargs: Mapping[str, Any], tensors: list[Tensor], places: list[str]) -> None:
        """Count an operation of the GPU's, and refuse one of two devices."""
        on, packet, name = self.on, func.overloadpacket, func.overloadpacket.__name__
        if name not in _NO_KERNEL:
            on.kernels[line()] += 1
        if name in _NOT_REPEATABLE and torch.are_deterministic_algorithms_enabled() and _refused(func, args):
            on.mix(f"{name} on CUDA is not repeatable")
        if packet in _INDEXING:
            if _by_mask(args[1]) and not (len(args) > 2 and args[2].numel() == 1 and on.place(args[2]) == HOST):
                on.wait(f"{name} by a mask")  # but filling with a number by a mask
        elif name in _WAITS:
            on.wait(name)
        if HOST not in places or packet in _CROSSING:
            return
        if packet in _INDEXING:
            self._look_at_indices(args)
            return
        if packet is _aten.linalg_lstsq and "gels" not in (*args, *kwargs.values()):
            on.mix("lstsq on CUDA has the driver gels alone")
        numbers = torch.Tag.pointwise in func.tags or packet in _WITH_NUMBERS
        written = func._schema.arguments[0].alias_info
        for position, (tensor, at) in enumerate(zip(tensors, places, strict=True)):
            if at == HOST and (tensor.dim() or not numbers or (not position and written and written.is_write)):
                shapes = ", ".join(f"{tuple(each.shape)} {there}" for each, there in zip(tensors, places, strict=True))
                on.mix(f"{name} of tensors on two devices: {shapes}")
                return

    def _look_at_indices(self, args: Any) -> None:
        on = self.on
        if on.place(args[0]) == HOST:
            on.mix("indices on the GPU of a tensor on the host")
        elif any(index is not None and on.place(index) == HOST for index in args[1]):
            on.upload("indices")
        if len(args) > 2 and args[2].dim() and on.place(args[2]) != on.place(args[0]):
            on.mix("values of another device are put into a tensor")


def _refused(func: Any, args: Any) -> bool:
    """Whether CUDA refuses this form: a median with its position, a running sum of floats, a weighted count."""
    name, overload = func.overloadpacket.__name__, func._overloadname
    if name in ("median", "nanmedian"):
        return bool(overload.startswith("dim"))
    if name == "cumsum":
        return bool(args[0].is_floating_point())
    if name == "bincount":
        return len(args) > 1 and args[1] is not None
    return True


def _by_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
