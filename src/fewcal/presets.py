"""Named parameter sets of GDC. Each states how it resolves what the paper leaves open.

`paper/…`    the equations as printed, with the tuned values of the paper's appendix F (30 rows)
`authors/…`  what the authors' own script did, with the same values
`dc`         distribution calibration (Yang et al. 2021) in GDC's terms

A preset can also be a file (`save_preset`), as a search writes it: its parameters with where they come from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.names import nearest_names
from fewcal._utils.text import one_line
from fewcal._version import __version__
from fewcal.calibrate import METRICS
from fewcal.covariance import COVARIANCES
from fewcal.errors import FileFormatError, InputError
from fewcal.params import GDCParams


@dataclass(frozen=True)
class Preset:
    """A named set of parameters, a line on where it comes from, and the open questions it settles.

    `provenance` tells how a search found it: features, protocol, seed, versions.
    """

    name: str
    params: GDCParams
    summary: str
    resolves: dict[str, str]
    provenance: dict[str, Any] = field(default_factory=dict)


# The paper's appendix F: dataset, setting, reported accuracy, m, k, α1, α2/α1, β. n = 750 throughout.
# For meta-tiered the text of appendix H prints α2 = 100 where this table has 100·α1; the table is taken.
PAPER_ROWS: tuple[tuple[str, str, float, float, int, float, float, float], ...] = (
    ("mini", "1shot", 73.00, 1.0, 8, 3000, 10, 0.5),
    ("mini", "1shot.2", 72.80, 1.0, 8, 6000, 10, 0.5),
    ("mini", "1shot.3", 72.30, 1.0, 8, 2000, 10, 0.5),
    ("mini", "5shot", 87.22, 3.0, 30, 9000, 10, 0.5),
    ("mini", "5shot.2", 86.91, 3.0, 30, 8000, 10, 0.5),
    ("mini", "5shot.3", 86.82, 3.0, 30, 7000, 10, 0.5),
    ("cub", "1shot", 84.57, 1.0, 4, 8000, 10, 0.5),
    ("cub", "1shot.2", 84.49, 1.0, 6, 10000, 10, 0.5),
    ("cub", "1shot.3", 84.22, 1.0, 4, 9000, 10, 0.5),
    ("cub", "5shot", 93.46, 2.0, 4, 5000, 10, 0.5),
    ("cub", "5shot.2", 93.16, 1.0, 10, 2000, 100, 0.5),
    ("cub", "5shot.3", 93.15, 1.0, 16, 3000, 100, 0.5),
    ("dogs", "1shot", 65.35, 1.5, 10, 400, 100, 1.0),
    ("dogs", "1shot.2", 65.12, 1.75, 10, 500, 100, 1.0),
    ("dogs", "1shot.3", 64.91, 1.5, 12, 500, 100, 1.0),
    ("dogs", "5shot", 80.56, 1.5, 12, 300, 200, 1.0),
    ("dogs", "5shot.2", 80.12, 1.25, 12, 300, 400, 1.0),
    ("dogs", "5shot.3", 80.01, 1.25, 12, 100, 200, 1.0),
    ("mini2cub", "1shot", 41.08, 0.5, 64, 400, 100, 0.5),
    ("mini2cub", "1shot.2", 39.11, 0.5, 62, 500, 100, 0.5),
    ("mini2cub", "1shot.3", 39.02, 2.5, 10, 400, 100, 0.5),
    ("mini2cub", "5shot", 54.69, 0.5, 18, 100, 100, 0.5),
    ("mini2cub", "5shot.2", 52.12, 0.5, 12, 100, 100, 0.5),
    ("mini2cub", "5shot.3", 49.14, 1.5, 18, 100, 200, 0.5),
    ("meta-tiered", "1shot", 43.51, 2.25, 8, 100, 100, 1.0),
    ("meta-tiered", "1shot.2", 41.12, 2.0, 10, 100, 100, 1.0),
    ("meta-tiered", "1shot.3", 40.01, 1.5, 12, 200, 100, 1.0),
    ("meta-tiered", "5shot", 56.79, 2.0, 10, 100, 100, 1.0),
    ("meta-tiered", "5shot.2", 53.13, 2.25, 12, 200, 100, 1.0),
    ("meta-tiered", "5shot.3", 50.01, 1.25, 12, 100, 200, 1.0),
)

_PAPER = GDCParams()  # its defaults are the printed equations

_AUTHORS = GDCParams(
    metric="euclidean",
    cov_weights="bases-only",
    transform_base=False,
    off_diagonal="all",
    psd="eigen",
    n_per="class",
)

_DC = GDCParams(
    transform_base=False,
    metric="euclidean",
    k=2,
    m=0.0,
    strength=2.0,  # w = 1/(1 + d⁰) is a half, and DC weighs every neighbour 1
    cov="independent",
    cov_weights="average",
    alpha1=0.0,
    alpha2_ratio=0.0,
    constant=0.21,
    n_per="class",
    head="lbfgs",
)


def _resolved(p: GDCParams) -> dict[str, str]:
    """The open questions of the paper, answered from the parameters themselves."""
    distance = METRICS[p.metric].words.format(
        delta=p.delta,
        mahalanobis_ridge=p.mahalanobis_ridge,
        shift=", ln|Σ| from the smallest" if p.mahalanobis_shift else "",
    )
    size = f"{p.common_size} rows" if p.common_size else "the smallest"
    covariance = COVARIANCES[p.cov].words.format(size=size)
    share = {
        "with-support": "w/(1+Σw), the support point holds a share",
        "bases-only": "w/Σw, the support point holds no share",
        "average": "plain mean of the k covariances",
    }[p.cov_weights]
    return {
        "distance in the weight": distance
        + (
            f", in units of {p.distance_scale:g}" + "× the nearest-base distance" * (p.distance_scale_of == "bank")
            if p.distance_scale
            else ""
        ),
        "weights of the mean": "(x̃ + Σ wᵢμᵢ)/(1+Σw)",
        "weights of the covariance": "does not matter (pooled)" if p.cov == "pooled" else share,
        "cov(X')": covariance,
        "base features Gaussianized": "yes, one space for all"
        if p.transform_base
        else "no: raw base, transformed support and query",
        "query transformed": "yes",
        "after the power transform": ", ".join(["centre"] * p.center + ["L2"] * p.l2) or "nothing",
        "σ2": "mean over D(D−1) entries" if p.off_diagonal == "pairs" else "mean over D² entries",
        "α2": f"{p.alpha2_ratio:g}·α1",
        "not positive semi-definite": "analytic clip of α2σ2, with a warning"
        if p.psd == "clip"
        else "eigenvalues clipped at 0",
        "n": "per support point" if p.n_per == "point" else "per class, shared among its shots",
        "Yeo-Johnson": "full formula",
        "Tukey or Yeo-Johnson": "decided once on base data (Tukey iff all ≥ 0)" if p.kind == "auto" else p.kind,
        "β = 0 and zeros": f"log(x + {p.eps:g})",
        "head": str(p.as_dict()["head"]),
    }


def _all() -> dict[str, Preset]:
    out: dict[str, Preset] = {}

    def add(name: str, params: GDCParams, summary: str) -> None:
        out[name] = Preset(name, params, summary, _resolved(params))

    add("paper", _PAPER, "the equations as printed, with the values of miniImageNet 5-way 1-shot")
    add("authors", _AUTHORS, "the authors' script, with the values of miniImageNet 5-way 1-shot")
    add(
        "dc",
        _DC,
        "distribution calibration (Yang et al. 2021) in GDC's terms: the method `dc`, k = 2, α = 0.21",
    )
    for family, base in (("paper", _PAPER), ("authors", _AUTHORS)):
        for dataset, setting, accuracy, m, k, alpha1, ratio, beta in PAPER_ROWS:
            params = base.with_changes(m=m, k=k, alpha1=float(alpha1), alpha2_ratio=float(ratio), beta=beta)
            add(
                f"{family}/{dataset}/{setting}",
                params,
                f"appendix F; the paper reports {accuracy:.2f} on its own features",
            )
    return out


_PRESETS = _all()


def list_presets() -> list[str]:
    """Names of all presets.

    >>> [name for name in list_presets() if "/" not in name]
    ['paper', 'authors', 'dc']
    """
    return list(_PRESETS)


def describe_preset(name: str | os.PathLike[str]) -> Preset:
    """A preset with its summary and the questions it settles, by name or from a file."""
    if isinstance(name, str) and name in _PRESETS:
        return _PRESETS[name]
    file = Path(name)
    if file.suffix == ".json" or file.is_file():
        return load_preset(file)
    hint = nearest_names(str(name), _PRESETS)
    raise InputError(f"preset {str(name)!r} is unknown{hint} (a preset file ends in .json)")


def get_preset(name: str | os.PathLike[str]) -> GDCParams:
    """The parameters of a preset.

    >>> get_preset("paper/cub/5shot").k
    4
    >>> get_preset("paper/cub/5shots")
    Traceback (most recent call last):
    ...
    fewcal.errors.InputError: preset ... is unknown; did you mean ...
    """
    return describe_preset(name).params


# ---- preset files ---------------------------------------------------------------------------------------------------

_FORMAT, _FORMAT_VERSION = "fewcal-preset", 1


def save_preset(
    path: str | os.PathLike[str],
    params: GDCParams,
    summary: str,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write parameters as a file that `--preset FILE` and `GDCClassifier(preset=FILE)` read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_preset(f"{folder}/mine.json", GDCParams(k=3), "for the docs")
    ...     get_preset(f"{folder}/mine.json").k
    3
    """
    file = Path(path)
    if file.suffix != ".json":
        raise InputError(f"{file}: a preset file ends in .json")
    if not params.trainer.name:
        raise InputError(f"head={params.head!r} cannot be written to a preset file; give it to the classifier itself")
    write_json(
        file,
        {
            "format": _FORMAT,
            "version": _FORMAT_VERSION,
            "fewcal": __version__,
            "summary": summary,
            "params": params.as_dict(),
            "provenance": dict(provenance or {}),
        },
    )


def load_preset(path: str | os.PathLike[str]) -> Preset:
    """Read a preset file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no preset file at {file}; `fewcal tune` writes one, `fewcal presets list` names the others")
    content = read_json(file, "it is no preset file")
    if content.get("format") != _FORMAT:
        raise FileFormatError(f"{file} is JSON, but not a preset of GDC; settings of HGDC are read by --set @{file}")
    version = content.get("version")
    if not isinstance(version, int) or version > _FORMAT_VERSION:
        raise FileFormatError(
            f"{file} has preset format {version!r}; this fewcal {__version__} reads up to {_FORMAT_VERSION}; upgrade it"
        )
    values, summary, provenance = (content.get(key) for key in ("params", "summary", "provenance"))
    if not isinstance(values, dict) or not isinstance(summary, str) or not isinstance(provenance, dict):
        raise FileFormatError(f"{file} is damaged: params, summary or provenance are missing")
    missing = [f.name for f in fields(GDCParams) if f.name not in values]
    if missing:
        raise FileFormatError(f"{file} is damaged: it has no value for {', '.join(missing[:3])}")
    try:
        params = GDCParams().with_changes(**values)
    except InputError as error:
        raise FileFormatError(f"{file} holds parameters that GDC refuses: {one_line(error, 400)}") from error
    return Preset(str(file), params, summary, _resolved(params), provenance)
