"""What a search begins with: trials that are given, before any is proposed."""

from __future__ import annotations

from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.presets import get_preset, list_presets
from fewcal.tuning.search import Search
from fewcal.tuning.spaces import Picks, Space


def first_trials(search: Search, space: Space, bank: BaseBank) -> list[Picks]:
    """The trials that `search.enqueue` names, or its protocol; none for a search that starts from nothing."""
    asked = search.enqueue or search.rules.enqueue
    if asked == "none":
        return []
    return start_points(space, bank) if asked == "default" else [published_point(space, search.shot)]


def start_points(space: Space, bank: BaseBank) -> list[Picks]:
    """Presets that lie in the space, so that a search which begins with them cannot end below them on its tasks."""
    default = get_preset("paper").with_changes(
        head="closed_form", cov_weights="bases-only", cov="independent", center=True, l2=True, beta=1.0,
        k=min(4, len(bank)), m=2.0, alpha1=100.0, alpha2_ratio=10.0, distance_scale_of="one", distance_scale=1.0,
    )  # fmt: skip
    found = [space.values(default)]
    return [values for values in found if values is not None]


def published_point(space: Space, shot: int) -> Picks:
    """The paper's first candidate (appendix F) for the dataset of the space; that of Stanford Dogs for the ablation."""
    dataset = "dogs" if space.name == "ablation" else space.name.removeprefix("paper/")
    name = f"paper/{dataset}/{shot}shot"
    if name not in list_presets():
        raise InputError(
            f"--enqueue published: the paper has no setting for space {space.name!r} and {shot} shots; it has some for "
            "the spaces paper/… and ablation, with 1 and 5 shots"
        )
    values = space.values(get_preset(name))
    if values is None:
        raise InputError(
            f"--enqueue published: {name} does not lie in the space, which ends at k={space_k(space)}; "
            "use --enqueue none"
        )
    return values


def space_k(space: Space) -> int:
    """The largest k of a space."""
    return next(int(axis.high) for axis in space.axes({}) if axis.name == "k")
