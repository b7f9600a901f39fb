"""The `.plk` feature dictionaries of public few-shot repositories, `{class: [vector, ...]}`, read without trust.

A pickle is a program, which `pickle.load` runs. Here `unpickle`, a process with limits, reads it by an allow-list.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from fewcal.errors import FileFormatError
from fewcal.features.io.formats import FileFormat, RawSplit

SCRIPT = Path(__file__).with_name("unpickle.py")
# Processor time of a file, time until its process must end, and what each megabyte adds to both.
CPU_SECONDS, WAIT_SECONDS, SECONDS_PER_MB = 5, 60, 1


def read_plk(path: Path) -> RawSplit:
    """Return the rows class by class, in the order of the dictionary; class names are None where keys are numbers."""
    more = SECONDS_PER_MB * (path.stat().st_size >> 20)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with path.open("rb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(SCRIPT), str(CPU_SECONDS + more)],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | threads,
                timeout=WAIT_SECONDS + more,
                check=True,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            raise FileFormatError(
                f"{path} takes more memory or time than vectors of its size; load it where you trust it and save it "
                "again as npz"
            ) from None
    answer = io.BytesIO(done.stdout)
    head = json.loads(answer.readline())
    if "error" in head:
        raise FileFormatError(f"{path}{head['error']}; get it again, or load it where you trust it and save it as npz")
    features, labels = (np.lib.format.read_array(answer, allow_pickle=False) for _ in range(2))
    return RawSplit(features, labels, head["names"])


FORMAT = FileFormat((".plk", ".pkl"), read_plk)
