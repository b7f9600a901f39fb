"""Named parameter sets of GDC. Each answers what the paper leaves open.

`paper/…`    the equations as printed, with the tuned values of the paper's appendix F (30 rows)
`authors/…`  what the authors' own script did, with the same values
`dc`         distribution calibration (Yang et al. 2021) in GDC's terms

A preset can also be a file (`save_preset`), as a search writes it: its parameters with where they come from.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.names import nearest_names
from fewcal._utils.text import one_line
from fewcal._version import __version__
from fewcal.calibrate import METRICS
from fewcal.covariance import COVARIANCES
from fewcal.errors import FileFormatError, InputError
from fewcal.params import GDCParams


class PaperRow(NamedTuple):
    """A row of table 7 of the paper: dataset, shots, candidate 1 to 3, accuracy in per cent, parameters of GDC."""

    dataset: str
    shot: int
    candidate: int
    accuracy: float
    plus_minus: float
    m: float
    k: int
    alpha1: float
    alpha2_ratio: float
    beta: float

    @property
    def name(self) -> str:
        """As presets have it, behind `paper/`."""
        return f"{self.dataset}/{self.shot}shot" + (f".{self.candidate}" if self.candidate > 1 else "")

    @property
    def parameters(self) -> dict[str, float]:
        """Its parameters, by field of `GDCParams`."""
        return {name: getattr(self, name) for name in ("m", "k", "alpha1", "alpha2_ratio", "beta")}


@cache
def paper_rows() -> list[PaperRow]:
    """The thirty rows of the paper's table of candidates (`paper_rows.toml`).

    >>> paper_rows()[0].name, paper_rows()[0].accuracy, paper_rows()[0].k
    ('mini/1shot', 73.0, 8)
    """
    text = files("fewcal").joinpath("paper_rows.toml").read_text(encoding="utf-8")
    return [PaperRow(*row) for row in tomllib.loads(text)["rows"]]


@dataclass(frozen=True)
class Preset:
    """A named set of parameters of GDC, with a line on its origin.

    `provenance` is how a search found it: features, protocol, seed, versions.
    """

    name: str
    params: GDCParams
    summary: str
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def resolves(self) -> dict[str, str]:
        """What the paper leaves open, as the parameters answer it."""
        return _answers(self.params)


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


def _answers(p: GDCParams) -> dict[str, str]:
    """What the paper leaves open, answered from the parameters themselves."""
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
    unit = f", in units of {p.distance_scale:g}" + "× the nearest-base distance" * (p.distance_scale_of == "bank")
    answers = {
        "distance in the weight": distance + unit * bool(p.distance_scale),
        "weights of the mean": "(x̃ + Σ wᵢμᵢ)/(1+Σw)",
        "weights of the covariance": "no effect (pooled)" if p.cov == "pooled" else share,
        "cov(X')": covariance,
        "base features Gaussianized": (
            "yes, one space for all" if p.transform_base else "no: raw base, transformed support and query"
        ),
        "query transformed": "yes",
        "after the power transform": ", ".join(["centre"] * p.center + ["L2"] * p.l2) or "nothing",
        "σ2": f"mean over {'D(D−1)' if p.off_diagonal == 'pairs' else 'D²'} entries",
        "α2": f"{p.alpha2_ratio:g}·α1",
        "not positive semi-definite": (
            "analytic clip of α2σ2, with a warning" if p.psd == "clip" else "eigenvalues clipped at 0"
        ),
        "n": "per support point" if p.n_per == "point" else "per class, shared among its shots",
        "Yeo-Johnson": "full formula",
        "Tukey or Yeo-Johnson": "decided once on base data (Tukey iff all ≥ 0)" if p.kind == "auto" else p.kind,
        "β = 0 and zeros": f"log(x + {p.eps:g})",
        "head": str(p.as_dict()["head"]),
    }
    used = p.in_effect().keys()
    fields_of = {"σ2": "off_diagonal", "α2": "alpha2_ratio", "not positive semi-definite": "psd", "n": "n"}
    idle = {question for question, name in fields_of.items() if name not in used}
    return {question: answer for question, answer in answers.items() if question not in idle}


@cache
def _presets() -> dict[str, Preset]:
    families = {
        "paper": (_PAPER, "the equations as printed, with the values of miniImageNet 5-way 1-shot"),
        "authors": (_AUTHORS, "the authors' script, with the values of miniImageNet 5-way 1-shot"),
    }
    found = [Preset(name, params, summary) for name, (params, summary) in families.items()]
    found.append(
        Preset(
            "dc", _DC, "distribution calibration (Yang et al. 2021) in GDC's terms: the method `dc`, k = 2, α = 0.21"
        )
    )
    for family, (base, _) in families.items():
        for row in paper_rows():
            summary = f"appendix F; the paper reports {row.accuracy:.2f} on its own features"
            found.append(Preset(f"{family}/{row.name}", base.with_changes(**row.parameters), summary))
    return {preset.name: preset for preset in found}


def list_presets() -> list[str]:
    """Names of all presets.

    >>> [name for name in list_presets() if "/" not in name]
    ['paper', 'authors', 'dc']
    """
    return list(_presets())


def describe_preset(name: str | os.PathLike[str]) -> Preset:
    """A preset by name or from a file."""
    if isinstance(name, str) and name in _presets():
        return _presets()[name]
    file = Path(name)
    if file.suffix == ".json" or file.is_file():
        return load_preset(file)
    hint = nearest_names(str(name), _presets())
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
    return Preset(str(file), params, summary, provenance)
