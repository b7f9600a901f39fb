"""A studio project: the store, the background work and the answers, for any number of open pages."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from warnings import warn

import numpy as np

from fewcal.apply.checks import check_reject
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.apply.reading import check_same_extractor, check_same_features
from fewcal.apply.studio import intake
from fewcal.apply.studio.answers import Recipe
from fewcal.apply.studio.checker import Checker, check_moment, warm_up
from fewcal.apply.studio.embedder import Embedder, Progress
from fewcal.apply.studio.moment import Answered, Checked, Moment, answer_moment
from fewcal.apply.studio.store import NONE_CLASS, Edit, Found, Item, ProjectStore, checked_class_name
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extractors import Extractor, as_extractor, find_entry
from fewcal.features.sources.kinds import DEFAULT_EXTRACTORS


@dataclass(frozen=True, eq=False)
class StudioSettings:
    """What a studio is started with.

    extractor : a name, an `Extractor`, or None for the usual one of pictures or texts
    bank : base classes from the same extractor, or None; bank_path : where they came from
    base_picture : gives the JPEG of a base class to look at, or None
    """

    extractor: str | Extractor | None = None
    bank: BaseBank | None = None
    bank_path: str | None = None
    preset: str | None = None
    device: str | None = None
    base_picture: Callable[[str], bytes | None] | None = None
    limits: intake.Limits = field(default_factory=intake.Limits)


class Studio:
    """A project in a folder. All methods may be called from any thread.

    `revision` counts what is new to see, and `session` is another one at each start, whatever the clock shows.

    Everything that a page shows changes while `lock` is held, and never for longer than a write takes. Fits, and files
    that come in, have locks of their own, which are taken before it: one at a time, and nothing else waits.
    """

    def __init__(self, folder: Path, settings: StudioSettings | None = None) -> None:
        self.folder, self.settings = folder, settings or StudioSettings()
        self.store = ProjectStore(folder)
        intake.sweep(folder)
        self.notes: list[str] = []  # what of the folder is left out
        self.revision, self.session = 0, secrets.token_hex(4)
        self.lock, self._fitting, self._intake = threading.RLock(), threading.Lock(), threading.Lock()
        self._answered: Answered | None = None
        self._features: tuple[list[int], np.ndarray] | None = None
        self.checked: Checked | None = None
        self._started = False
        self._embedder = Embedder(self.store, folder, self._make_extractor, self._keep, self._changed)
        self._checker = Checker(self.moment, self._keep_check)

    def start(self) -> None:
        """Look through the folder and begin to work in the background, unless that has been done."""
        if self._started:
            return
        self._started = True
        self.store.retry_failed(i.id for i in self.store.items())
        self.rescan()
        self._check_extractor()
        self._embedder.start()
        threading.Thread(target=warm_up, args=[self.recipe], name="fewcal-warm-up", daemon=True).start()
        self._checker.wake()

    def _check_extractor(self) -> None:
        """Refuse an extractor of other things and a bank of other features; forget features that it would not give."""
        wanted, stamp, bank = self.settings.extractor, self.store.meta("extractor"), self.settings.bank
        entry = find_entry(wanted) if isinstance(wanted, str) else None
        if entry is not None and entry.kind != "either" and self.kind not in (None, entry.kind):
            raise InputError(
                f"{wanted} takes {entry.kind}s and {self.folder} holds {self.kind}s; leave out --extractor"
            )
        if stamp and wanted is not None:
            given = wanted.stamp if isinstance(wanted, Extractor) else wanted
            if given not in (stamp, stamp.partition("@")[0]):
                self.store.forget_features()
        if stamp and bank is not None and self.store.count("ready"):
            check_same_features(bank, stamp, self.store.features()[1].shape[1])

    def close(self) -> None:
        """Finish what is at hand and close the file."""
        self._embedder.stop()
        self._checker.stop()
        self.store.close()

    # ---- items ----------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str | None:
        """ "picture", "text", or None as long as the project is empty."""
        if isinstance(self.settings.extractor, Extractor):
            return self.settings.extractor.kind
        return self.store.meta("kind")

    def rescan(self) -> int:
        """Take in what is new in the folder or mended, and mark what is gone; the number of new items.

        Pages call it while files are being copied: what was read too early is read again when it has changed.
        """
        with self._intake:
            found, notes = intake.scan(self.folder, self.kind)
            self._note(notes)
            names = {one.name for one in found}
            gone = [i.id for i in self.store.items() if i.text is None and i.name not in names and not self._exists(i)]
            mended = [i.id for i in self.store.items() if i.state == "failed" and self._embedder.outdated(i)]
            if gone or mended:
                with self.lock:
                    self.store.mark_gone(gone)
                    self.store.retry_failed(mended)
                    self._features = None
                    self._changed()
                self._embedder.wake()
            with self.lock:
                if self.store.name_classes(found):
                    self._changed()
            return self._add(intake.unseen_texts(found, {i.name: i.text for i in self.store.items()}))

    def _note(self, notes: list[str]) -> None:
        """Name what is left out of the folder: in the terminal once, on pages for as long as it is so."""
        for note in notes:
            if note not in self.notes:
                warn(note, FewcalWarning, stacklevel=3)
        if notes != self.notes:
            with self.lock:
                self.notes = notes
                self._changed()

    def _exists(self, item: Item) -> bool:
        try:
            return intake.inside(self.folder, item.name).is_file()
        except InputError:
            return False

    def add_file(self, name: str, data: bytes) -> list[int]:
        """Take in a dropped file: a picture, or a file of texts; the ids of its items, new or not."""
        with self._intake:
            if not intake.is_text_file(name):
                self._check_kind("picture")
                kept = intake.keep_picture(self.folder, name, data, self.settings.limits)
                self._add([Found(kept)])
                return self.store.ids([kept])
            self._check_kind("text")
            found = self._texts_in(intake.safe_file_name(name, "texts.txt"), data)
            intake.checked_texts([one.text or "" for one in found], self.settings.limits)
            self._add(intake.unseen_texts(found, {i.name: i.text for i in self.store.items()}))
            file = found[0].name.rpartition(": ")[0] if found else ""
            texts = {one.text for one in found}
            return [i.id for i in self.store.items() if i.text in texts and i.name.startswith(f"{file}: ")]

    def _texts_in(self, name: str, data: bytes) -> list[Found]:
        with intake.scratch_file(self.folder, f"texts{Path(name).suffix.lower()}") as file:
            file.write_bytes(data)
            try:
                return intake.texts_of(file, name)
            except ValueError as error:
                raise InputError(str(error).replace(str(file), name)) from error

    def add_texts(self, texts: Sequence[str]) -> int:
        """Take in texts that were typed or pasted; the number of new items."""
        kept = intake.checked_texts(texts, self.settings.limits)
        with self._intake:
            self._check_kind("text")
            items = self.store.items()
            present = {item.text for item in items}
            fresh = [t for t in dict.fromkeys(kept) if t not in present]
            return self._add([Found(f"typed {len(items) + n}", text) for n, text in enumerate(fresh, 1)])

    def _check_kind(self, kind: str) -> None:
        if self.kind not in (None, kind):
            raise InputError(f"this project holds {self.kind}s; make another folder for {kind}s")

    def _add(self, found: Sequence[Found]) -> int:
        if not found:
            return 0
        with self.lock:
            names = {item.name for item in self.store.items()} | {one.name for one in found}
            if len(names) > self.settings.limits.items:
                limit = self.settings.limits.items
                raise InputError(f"a project takes up to {limit} items, not {len(names)}; make another folder")
            if self.store.meta("kind") is None:
                self.store.set_meta("kind", "text" if found[0].text is not None else "picture")
            added = self.store.add_items(found)
            self._changed()  # texts that were there may name a class now
        if self.store.count("waiting"):
            self._embedder.wake()
        return added

    # ---- classes and labels ---------------------------------------------------------------------------------------

    def add_class(self, name: str) -> int:
        """A new class; its id."""
        with self.lock:
            name = checked_class_name(name, self.store.classes().values(), NONE_OF_THESE)
            number = self.store.next_class_id()
            self._record(Edit(f"class {name} added", classes={number: (None, name)}))
            return number

    def take_folders(self) -> None:
        """Make every folder a class, and what lies in it its examples; labels that there are stay."""
        self._take(
            intake.classes_by_folder, "folders", "items do not lie in two folders or more; name the classes instead"
        )

    def take_labels(self) -> None:
        """The same for the classes that files of texts name in their rows."""
        self._take(
            intake.classes_by_label, "labels", "no text names its class; give a .csv or .jsonl file a column 'label'"
        )

    def _take(self, classes: Callable[[Sequence[Item]], dict[str, list[int]]], what: str, nothing: str) -> None:
        with self.lock:
            found = classes(self.store.items())
            if not found:
                raise InputError(nothing)
            by_name = {name: number for number, name in self.store.classes().items()} | {NONE_OF_THESE: NONE_CLASS}
            fresh = [checked_class_name(name, (), "") for name in found if name not in by_name]
            by_name |= {name: number for number, name in enumerate(fresh, self.store.next_class_id())}
            given = self.store.labels()
            labels: dict[int, tuple[int | None, int | None]]
            labels = {i: (None, by_name[name]) for name, own in found.items() for i in own if i not in given}
            made: dict[int, tuple[str | None, str | None]] = {by_name[name]: (None, name) for name in fresh}
            if labels or made:
                self._record(Edit(f"{len(found)} {what} → classes", labels, made))

    def rename_class(self, number: int, name: str) -> None:
        with self.lock:
            before = self._own_class(number)
            others = [n for i, n in self.store.classes().items() if i != number]
            name = checked_class_name(name, others, NONE_OF_THESE)
            if name != before:
                self._record(Edit(f"class {before} renamed to {name}", classes={number: (before, name)}))

    def remove_class(self, number: int) -> None:
        """Remove a class; its items lose their labels."""
        with self.lock:
            name = self._own_class(number)
            labels: dict[int, tuple[int | None, int | None]]
            labels = {item: (number, None) for item, label in self.store.labels().items() if label == number}
            self._record(Edit(f"class {name} removed", labels, {number: (name, None)}))

    def assign(self, wanted: Mapping[int, int | None]) -> None:
        """Give each item a class, 0 for "none of these", or None to take its label away."""
        with self.lock:
            names = {number: "no class" if number is None else self._class(number) for number in wanted.values()}
            labels = self.store.labels()
            items = [self.store.item(i) for i in wanted]
            shown = [i for i in items if i.state != "failed" or wanted[i.id] is None]
            if items and not shown:
                raise InputError(f"{items[0].name} cannot be read, so it cannot be an example")
            changes = {i.id: (labels.get(i.id), wanted[i.id]) for i in shown if labels.get(i.id) != wanted[i.id]}
            if changes:
                what = shown[0].name if len(shown) == 1 else f"{len(shown)} items"
                self._record(Edit(f"{what} → {' and '.join(dict.fromkeys(names.values()))}", changes))

    def _class(self, number: int) -> str:
        if number == NONE_CLASS:
            return NONE_OF_THESE
        try:
            return self.store.classes()[number]
        except KeyError:
            raise InputError(f"there is no class {number}; it may have been removed in another window") from None

    def _own_class(self, number: int) -> str:
        """The name of a class that a person made."""
        if number == NONE_CLASS:
            raise InputError(f"{NONE_OF_THESE!r} is always there; take its labels away instead")
        return self._class(number)

    def _record(self, edit: Edit) -> None:
        self.store.record(edit)
        self._changed()

    def undo(self) -> str | None:
        """Take back the last change; what it was, or None."""
        return self._step(self.store.undo)

    def redo(self) -> str | None:
        return self._step(self.store.redo)

    def _step(self, take: Callable[[], Edit | None]) -> str | None:
        with self.lock:
            if (edit := take()) is None:
                return None
            self._changed()
            return edit.what

    def set_reject(self, level: float | None) -> None:
        """Answer "none of these" where an item's p-value of belonging to a class is lower; None never does."""
        check_reject(level, self.settings.preset)
        with self.lock:
            self.store.set_meta("reject", None if level is None else repr(level))
            self._changed()

    @property
    def reject(self) -> float | None:
        level = self.store.meta("reject")
        return None if level is None else float(level)

    # ---- background -----------------------------------------------------------------------------------------------

    def _make_extractor(self) -> Extractor:
        wanted = self.settings.extractor or DEFAULT_EXTRACTORS[self.kind or "picture"]
        extractor = as_extractor(wanted, device=self.settings.device)
        if self.settings.bank is not None:
            check_same_extractor(self.settings.bank, extractor)
        with self.lock:
            if self.store.use_extractor(extractor.stamp):
                self._features = self.checked = None
            self._changed()
        return extractor

    def _keep(self, features: dict[int, np.ndarray], errors: dict[int, str]) -> None:
        with self.lock:
            self.store.set_features(features, errors)
            self._features = None
            self._changed()

    def _keep_check(self, checked: Checked) -> None:
        with self.lock:
            self.checked = checked
            self.revision += 1

    def _changed(self) -> None:
        with self.lock:
            self.revision += 1
        self._checker.wake()

    # ---- answers --------------------------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """How this project's classifier is made."""
        return Recipe(self.settings.bank, self.settings.preset)

    def moment(self) -> Moment:
        """The project as it is now."""
        with self.lock:
            if self._features is None:
                self._features = self.store.features()
            return Moment(
                self.revision,
                self.store.items(),
                *self._features,
                self.class_names,
                self.store.labels(),
                self.store.history(),
                self.recipe,
                self.reject,
                self.store.meta("extractor"),
                self.progress(),
                self.checked,
            )

    def answers(self) -> Answered:
        """The answers to the project as it is now, computed where there are none yet.

        Meanwhile labels may change and features arrive: fits are made one at a time, but nothing else waits for them.
        """
        with self._fitting:
            self._answered = answer_moment(self.moment(), self._answered)
            return self._answered

    def check(self) -> Checked:
        """The check of the examples as they are now."""
        moment = self.moment()
        if moment.checked is not None and moment.checked.labels == moment.labels:
            return moment.checked
        with self._fitting:
            return check_moment(moment)

    @property
    def class_names(self) -> dict[int, str]:
        """Names by id, "none of these" among them."""
        return self.store.classes() | {NONE_CLASS: NONE_OF_THESE}

    def progress(self) -> Progress:
        """How far the features are."""
        return self._embedder.progress()
