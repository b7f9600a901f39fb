"""Features on a system without the names that Windows lacks."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

CODE = """
    import os, signal, sys
    for module in ("fcntl", "resource", "pwd", "grp"):
        sys.modules[module] = None
    for name in ("O_NONBLOCK", "O_NOFOLLOW", "fork", "getuid", "mkfifo"):
        delattr(os, name)
    for name in ("SIGALRM", "SIGKILL"):
        delattr(signal, name)
    import pickle
    from pathlib import Path
    import numpy as np
    from PIL import Image
    from fewcal.features import FeatureSet, load_split
    from fewcal.features.extract import extract, find_splits
    from fewcal.features.extractors import as_extractor

    for name in ("a/1.png", "a/2.png", "b/3.png"):
        Path(name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 7)).save(name)
    model = as_extractor(lambda x: x.mean(axis=(1, 2)), name="colours", size=8)
    items = find_splits(".", "picture")["features"]

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    try:
        extract(items, model, "base.npz", batch=1, progress=stop)
    except KeyboardInterrupt:
        extract(items, model, "base.npz", resume=True)
    Path("novel.plk").write_bytes(pickle.dumps({"x": [np.ones(3)], "y": [np.zeros(3)]}))
    for format in ("parquet", "safetensors"):
        load_split("novel.plk").save(f"copy.{format}")
        assert load_split(f"copy.{format}").fingerprint() == load_split("novel.plk").fingerprint()
    print(sorted(FeatureSet.load(".").splits()))
"""


def test_features_need_no_names_of_unix(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CODE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("['base', 'novel']\n", 0), done.stderr
