"""Read pickled values with a list of allowed names, because an unrestricted pickle may call any function."""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

Names = Mapping[tuple[str, str], Any]  # (module, name) → object


def load(content: bytes, names: Names, classes: Callable[[type], bool] | None = None, encoding: str = "ASCII") -> Any:
    """Return the value pickled in the untrusted bytes `content`; only allowed functions and classes may occur.

    - `names`: allowed functions and classes, (module, name) → object used for it.
    - `classes`: function that returns True if a class of the package `bench` is also allowed; None allows none.
    - `encoding`: encoding of texts that Python 2 pickled.

    Raises `pickle.UnpicklingError` for any other name, and pickle's many exceptions for damaged bytes."""
    return _Unpickler(content, names, classes, encoding).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, names: Names, classes: Callable[[type], bool] | None, encoding: str) -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)
        self._names, self._classes = names, classes

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        if self._classes is not None and module.startswith("bench."):
            found = super().find_class(module, name)
            if isinstance(found, type) and self._classes(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
