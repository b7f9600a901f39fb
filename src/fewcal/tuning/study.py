"""A study: begun, continued or joined; its identity is what all who work on it must share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fewcal._utils.types import JSONObject
from fewcal.errors import InputError
from fewcal.evaluation.run_folder import first_difference
from fewcal.tuning.search import Search, SearchData, sampler_seed
from fewcal.tuning.storage import open_storage, require_optuna, storage_scheme, without_password

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class StudyPlace:
    """Where a study is kept: a journal in `folder`, or the database at `url`; and its name there."""

    folder: Path
    url: str | None = None
    name: str = "fewcal"

    def __post_init__(self) -> None:
        if self.url is not None:
            storage_scheme(self.url)


def identity_of(search: Search, data: SearchData) -> JSONObject:
    """What all who work on a study must share; what it begins with is for the one who begins it."""
    own = ("trials", "finalists", "final_tasks", "enqueue")
    settings = {k: v for k, v in search.to_dict().items() if k not in own}
    return {"search": settings, "features": data.fingerprints}


def open_study(place: StudyPlace, search: Search, data: SearchData, resume: bool) -> tuple[optuna.Study, bool]:
    """The study, and whether it is new."""
    folder, url, name = place.folder, place.url, place.name
    optuna = require_optuna()
    rules = search.rules
    storage = open_storage(folder, url)
    identity = identity_of(search, data)
    try:
        there = optuna.study.get_all_study_names(storage)
    except ValueError as error:  # a journal with a line that is none
        raise InputError(f"{folder} holds a damaged study ({error}); choose another folder") from error
    if name in there:
        study = optuna.load_study(study_name=name, storage=storage, pruner=rules.pruning.pruner())
        known = study.user_attrs.get("fewcal")
        if known is not None and not resume:
            where = without_password(url) if url else folder
            raise InputError(f"{where} already holds a study {name!r}; continue or join it with --resume")
        if known is not None and known != identity:
            raise InputError(
                f"the study {name!r} was begun with other settings or features: {first_difference(known, identity)}; "
                "use the same or another folder or --study"
            )
        study.sampler = rules.sampler(sampler_seed(search, first=False))
        if known is not None:
            return study, False
    else:
        try:
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                direction="maximize",
                pruner=rules.pruning.pruner(),
                sampler=rules.sampler(sampler_seed(search, first=True)),
            )
        except optuna.exceptions.DuplicatedStudyError:  # another process made it in this moment
            return open_study(place, search, data, resume)
    study.set_user_attr("fewcal", identity)
    study.set_metric_names(["accuracy"])
    return study, True
