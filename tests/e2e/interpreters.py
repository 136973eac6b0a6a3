"""CPython interpreters of this machine: on PATH, and beside a pyenv."""

import functools
import os
import pathlib
import subprocess


def found(versions):
    """version -> path of an interpreter that runs, as "3.8" -> "/usr/bin/python3.8"."""
    paths = ((version, path_of(version)) for version in versions)
    return {version: path for version, path in paths if path is not None}


@functools.cache
def path_of(version):
    folders = [pathlib.Path(f) for f in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    if pyenv.is_dir():
        folders += [v / "bin" for v in sorted(pyenv.iterdir())]
    for folder in folders:
        path = folder / f"python{version}"
        if os.access(path, os.X_OK) and subprocess.run([path, "-c", "import threading"], capture_output=True).returncode == 0:
            return str(path)
    return None
