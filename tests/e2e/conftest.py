"""Options of the end-to-end tests: which binary, which interpreter runs the jobs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "jobs"))


@pytest.fixture(scope="session")
def flatout() -> str:
    """$FLATOUT_BIN, else the newest build below build/, else what PATH has."""
    named = os.environ.get("FLATOUT_BIN")
    if named:
        return named
    built = sorted(ROOT.glob("build/*/flatout"), key=lambda p: p.stat().st_mtime)
    found = str(built[-1]) if built else shutil.which("flatout")
    if not found:
        pytest.skip("lacks the program: set FLATOUT_BIN or build it")
    return found


@pytest.fixture(scope="session")
def job_python() -> str:
    """$PYTHON, else this interpreter; it needs torch, numpy and pillow."""
    return os.environ.get("PYTHON", sys.executable)


@pytest.fixture(scope="session")
def tensorflow() -> str:
    """A Python with TensorFlow: $FLATOUT_TF_PYTHON, that of build/venv-tf, or this one."""
    python = os.environ.get("FLATOUT_TF_PYTHON", str(ROOT / "build" / "venv-tf" / "bin" / "python"))
    python = python if os.path.exists(python) else sys.executable
    if subprocess.run([python, "-c", "import tensorflow"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no Python with TensorFlow: tools/venv.sh build/venv-tf tests/requirements-tensorflow.txt")
    return python


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: install the package chromium")
    with api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()
