"""From options of a command to the settings of a studio."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from fewcal.apply.checks import checked_project_folder
from fewcal.apply.studio.project import StudioSettings
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.features.extractors import require_extractor
from fewcal.features.io.tables import class_name
from fewcal.features.sources.pictures import class_folders, decode, encoded, picture_files
from fewcal.presets import get_preset


def project_settings(
    folder: Path,
    *,
    demo: bool = False,
    extractor: str | None = None,
    bank: Path | None = None,
    base_pictures: Path | None = None,
    preset: str | None = None,
    device: str | None = None,
) -> StudioSettings:
    """Settings of a studio in `folder`; what cannot be is refused before anything is started."""
    checked_project_folder(folder)
    if demo:
        if extractor or bank or base_pictures:
            raise InputError("--demo brings its own extractor and base classes; leave out -e, --bank, --base-pictures")
        from fewcal.apply.studio.demo import demo_settings

        return demo_settings(folder)
    if base_pictures is not None and bank is None:
        raise InputError("--base-pictures shows the base classes of a bank: give --bank, too")
    if preset is not None:
        get_preset(preset)
    if extractor is not None:
        require_extractor(extractor)
    shown = None if base_pictures is None else pictures_of_classes(base_pictures)
    return StudioSettings(
        extractor,
        None if bank is None else BaseBank.load(bank),
        None if bank is None else str(bank.resolve()),
        preset,
        device,
        shown,
    )


def new_folder_note(folder: Path) -> str | None:
    """A line about a folder that is not there and will be made, as its name may be misspelt; None where it is.

    >>> new_folder_note(Path())
    """
    if folder.exists():
        return None
    beside = [p.name for p in folder.absolute().parent.glob("*") if p.is_dir()]
    meant = get_close_matches(folder.name, beside, n=1)
    hint = f" (did you mean {str(folder.with_name(meant[0]))!r}?)" if meant else ""
    return f"{folder} was not there and is a new, empty project{hint}; drop pictures or texts onto the page"


def pictures_of_classes(folder: Path) -> Callable[[str], bytes | None]:
    """For the name of a class, a JPEG of the first picture in the folder of that name; None where there is none."""
    places = {class_name(place.name): place for place in class_folders(folder)}
    if not places:
        raise InputError(f"{folder} holds no folders; give one with a folder of pictures for each base class")

    def shown(name: str) -> bytes | None:
        files = picture_files(places[name]) if name in places else []
        return encoded(decode(files[0], 160)) if files else None

    return shown
