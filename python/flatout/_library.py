"""Where the shared libraries of this package lie."""

import os
import pathlib


def find(name: str, variable: str) -> str:
    """The path of the library `name`; the environment variable `variable` may name another. Raises ImportError."""
    named = os.environ.get(variable)
    if named:
        return named
    package = pathlib.Path(__file__).resolve().parent
    # A wheel; an installation (lib/flatout/python/flatout); a source tree.
    for folder in (package / "_bin", package.parents[1], package.parents[1] / "build" / "release"):
        library = folder / name
        if library.exists():
            return str(library)
    raise ImportError(f"{name} is not installed beside this package; {variable} may name it")
