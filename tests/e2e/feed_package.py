"""flatout.feed with the library of the build under test; `built` skips where there is none."""
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLATOUT_BIN", ROOT / "build/release/flatout"))
LIBRARY = BIN.parent / "libflatout_feed.so"
built = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")
os.environ["FLATOUT_FEED_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "python"))

from flatout import feed  # noqa: E402, F401
