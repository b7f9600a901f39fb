"""A study: begun, continued or joined; its identity is what all who work on it must share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewcal.errors import InputError
from fewcal.evaluation.run_folder import first_difference
from fewcal.tune.search import Search, SearchData, sampler_seed
from fewcal.tune.storage import open_storage, require_optuna, without_password


def identity_of(search: Search, material: SearchData) -> dict[str, Any]:
    settings = {k: v for k, v in search.to_dict().items() if k not in ("trials", "finalists", "final_tasks")}
    return {"search": settings, "features": material.fingerprints}


def open_study(
    folder: Path, url: str | None, name: str, search: Search, material: SearchData, resume: bool
) -> tuple[Any, bool]:
    """The study, and whether it is new."""
    optuna = require_optuna()
    storage = open_storage(folder, url)
    identity = identity_of(search, material)
    try:
        there = optuna.study.get_all_study_names(storage)
    except ValueError as error:  # a journal with a line that is none
        raise InputError(f"{folder} holds a damaged study ({error}); choose another folder") from error
    if name in there:
        study = optuna.load_study(study_name=name, storage=storage, pruner=search.pruner())
        known = study.user_attrs.get("fewcal")
        if known is not None and not resume:
            place = without_password(url) if url else folder
            raise InputError(f"{place} already holds a study {name!r}; continue or join it with --resume")
        if known is not None and known != identity:
            raise InputError(
                f"the study {name!r} was begun with other settings or features: {first_difference(known, identity)}; "
                "use the same or another folder or --study"
            )
        study.sampler = search.sampler(sampler_seed(search, first=False))
        if known is not None:
            return study, False
    else:
        try:
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                direction="maximize",
                pruner=search.pruner(),
                sampler=search.sampler(sampler_seed(search, first=True)),
            )
        except optuna.exceptions.DuplicatedStudyError:  # another process made it in this moment
            return open_study(folder, url, name, search, material, resume)
    study.set_user_attr("fewcal", identity)
    study.set_metric_names(["accuracy"])
    return study, True
