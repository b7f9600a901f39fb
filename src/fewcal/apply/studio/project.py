"""A studio project: the store, the background features and the answers, for any number of open pages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from warnings import catch_warnings, simplefilter, warn

import numpy as np

from fewcal.apply.classify import check_same_extractor, check_same_features
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.apply.studio.answers import LeftOut, Recipe, expected_accuracy, fitted, leave_one_out
from fewcal.apply.studio.embedder import Embedder, Progress
from fewcal.apply.studio.intake import (
    Limits,
    checked_texts,
    classes_by_folder,
    classes_by_label,
    inside,
    is_text_file,
    keep_picture,
    safe_file_name,
    scan,
    texts_of,
    unknown_texts,
)
from fewcal.apply.studio.moment import Answered, Moment, answered
from fewcal.apply.studio.store import NONE_CLASS, Edit, Found, Item, ProjectStore, checked_class_name
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.extractors import Extractor, as_extractor, find_entry
from fewcal.features.sources.kinds import DEFAULT_EXTRACTORS

QUIET_S = 0.4  # without a change before examples are left out


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
    limits: Limits = field(default_factory=Limits)


class Studio:
    """A project in a folder. All methods may be called from any thread.

    `listeners` are called with nothing whenever there is something new to see; they must not wait for anything.
    `revision` counts such events from the time of the start on, so that a page left open finds a later server newer.

    Everything that a page shows changes while `lock` is held, and never for longer than a write takes. Fits, and files
    that come in, have locks of their own, which are taken before it: one at a time, and nobody else waits.
    """

    def __init__(self, folder: Path, settings: StudioSettings | None = None) -> None:
        self.folder, self.settings = folder, settings or StudioSettings()
        self.store = ProjectStore(folder)
        self.listeners: list[Callable[[], None]] = []
        self.notes: list[str] = []  # what of the folder is left out
        self.revision = self.started = time.time_ns() // 1_000_000
        self.lock, self._fitting, self._intake = threading.RLock(), threading.Lock(), threading.Lock()
        self._answered: Answered | None = None
        self._features: tuple[list[int], np.ndarray] | None = None
        self._left_out: tuple[dict[int, int], LeftOut | None] | None = None
        self._something_new = threading.Event()
        self._started = self._stop = False
        self._embedder = Embedder(self.store, folder, self._make_extractor, self._keep, self._changed)
        self._leave_out_thread = threading.Thread(target=self._leave_out_loop, name="fewcal-leave-out", daemon=True)

    def start(self) -> None:
        """Look through the folder and begin to work in the background, unless that has been done."""
        if self._started:
            return
        self._started = True
        self.store.retry_failed(i.id for i in self.store.items())
        self.rescan()
        self._check_extractor()
        self._embedder.start()
        self._leave_out_thread.start()
        self._something_new.set()

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
        self._stop = True
        self._something_new.set()
        self._embedder.stop()
        if self._leave_out_thread.is_alive():
            self._leave_out_thread.join(timeout=30)
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

        Pages ask for it while files are being copied: what was read too early is read again when it has changed.
        """
        with self._intake:
            found, notes = scan(self.folder, self.kind)
            self._tell(notes)
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
            return self._add(unknown_texts(found, {i.name: i.text for i in self.store.items()}))

    def _tell(self, notes: list[str]) -> None:
        """Say what is left out of the folder: in the terminal once, on pages for as long as it is so."""
        for note in notes:
            if note not in self.notes:
                warn(note, FewcalWarning, stacklevel=3)
        if notes != self.notes:
            with self.lock:
                self.notes = notes
                self._changed()

    def _exists(self, item: Item) -> bool:
        try:
            return inside(self.folder, item.name).is_file()
        except InputError:
            return False

    def add_file(self, name: str, data: bytes) -> list[int]:
        """Take in a dropped file: a picture, or a file of texts; the ids of its items, new or known."""
        with self._intake:
            if not is_text_file(name):
                self._check_kind("picture")
                kept = keep_picture(self.folder, name, data, self.settings.limits)
                self._add([Found(kept)])
                return self.store.ids([kept])
            self._check_kind("text")
            found = self._texts_in(safe_file_name(name, "texts.txt"), data)
            checked_texts([one.text or "" for one in found], self.settings.limits)
            self._add(found)
            return self.store.ids([one.name for one in found])

    def _texts_in(self, name: str, data: bytes) -> list[Found]:
        """The texts of a dropped file, under names that are free; the same texts dropped twice are kept once."""
        temporary = self.store.path.with_name(f"incoming{Path(name).suffix.lower()}")
        try:
            temporary.write_bytes(data)
            found = texts_of(temporary, name)
        except ValueError as error:
            raise InputError(str(error).replace(str(temporary), name)) from error
        except OSError as error:
            raise InputError(f"cannot write {temporary}: {error.strerror}; make room and drop it again") from error
        finally:
            temporary.unlink(missing_ok=True)
        known = {item.name: item.text for item in self.store.items()}
        shown, number = name, 1
        while any(known.get(f"{shown}{one.name.removeprefix(name)}", one.text) != one.text for one in found):
            number += 1
            shown = f"{Path(name).stem} ({number}){Path(name).suffix}"
        return [one._replace(name=f"{shown}{one.name.removeprefix(name)}") for one in found]

    def add_texts(self, texts: Sequence[str]) -> int:
        """Take in texts that were typed or pasted; the number of new items."""
        kept = checked_texts(texts, self.settings.limits)
        with self._intake:
            self._check_kind("text")
            items = self.store.items()
            known = {item.text for item in items}
            fresh = [t for t in dict.fromkeys(kept) if t not in known]
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
                raise InputError(f"a project takes at most {self.settings.limits.items} items, not {len(names)}")
            if self.store.meta("kind") is None:
                self.store.set_meta("kind", "text" if found[0].text is not None else "picture")
            added = self.store.add_items(found)
            self._changed()  # known texts may name a class now
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
        self._take(classes_by_folder, "folders", "items do not lie in two folders or more; name the classes instead")

    def take_labels(self) -> None:
        """The same for the classes that files of texts name in their rows."""
        self._take(classes_by_label, "labels", "no text names its class; give a .csv or .jsonl file a column 'label'")

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

    def assign(self, items: Sequence[int], number: int | None) -> None:
        """Give items a class, 0 for "none of these", or None to take their label away."""
        with self.lock:
            name = "no class" if number is None else self._class(number)
            labels = self.store.labels()
            shown = [self.store.item(i) for i in items]
            if number is not None:
                unreadable = [i for i in shown if i.state == "failed"]
                shown = [i for i in shown if i.state != "failed"]
                if unreadable and not shown:
                    raise InputError(f"{unreadable[0].name} cannot be read, so it cannot be an example")
            changes = {i.id: (labels.get(i.id), number) for i in shown if labels.get(i.id) != number}
            if changes:
                what = shown[0].name if len(shown) == 1 else f"{len(shown)} items"
                self._record(Edit(f"{what} → {name}", changes))

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
            edit = take()
            if edit is not None:
                self._changed()
            return None if edit is None else edit.what

    def set_reject(self, level: float | None) -> None:
        """Answer "none of these" where at least this share of base examples fit as well; None never does."""
        if level is not None and not 0 < level < 1:
            raise InputError(f"reject={level} must lie between 0 and 1, e.g. 0.05")
        if level is not None and self.settings.bank is None:
            raise InputError("'none of these' is judged against base classes; start the studio with --bank")
        with self.lock:
            self.store.set_meta("reject", None if level is None else repr(level))
            self._changed()

    @property
    def reject(self) -> float | None:
        level = self.store.meta("reject")
        return None if level is None or self.settings.bank is None else float(level)

    # ---- background -----------------------------------------------------------------------------------------------

    def _make_extractor(self) -> Extractor:
        wanted = self.settings.extractor or DEFAULT_EXTRACTORS[self.kind or "picture"]
        extractor = as_extractor(wanted, device=self.settings.device)
        if self.settings.bank is not None:
            check_same_extractor(self.settings.bank, extractor)
        with self.lock:
            if self.store.use_extractor(extractor.stamp, extractor.beta):
                self._features = self._left_out = None
            self._changed()
        return extractor

    def _keep(self, features: dict[int, np.ndarray], errors: dict[int, str]) -> None:
        with self.lock:
            self.store.set_features(features, errors)
            self._features = None
            self._changed()

    def _changed(self) -> None:
        with self.lock:
            self.revision += 1
        self._something_new.set()
        for listener in list(self.listeners):
            listener()

    def _warm_up(self) -> None:
        """What the first fit prepares of a bank takes seconds; done before there are labels, nobody waits for it."""
        bank = self.settings.bank
        rows = np.random.default_rng(0).random((2, 4 if bank is None else bank.dim), np.float32)
        with catch_warnings():
            simplefilter("ignore")
            fitted(self.recipe, rows, np.array(["a", "b"]))
            expected_accuracy(np.eye(2), np.array([True, False]))  # which imports SciPy

    def _leave_out_loop(self) -> None:
        """Leave-one-out takes as many fits as there are labels: answers do not wait for it."""
        self._warm_up()
        while True:
            self._something_new.wait()
            # While somebody labels, the answers have the processor to themselves.
            while self._something_new.is_set() and not self._stop:
                self._something_new.clear()
                self._something_new.wait(QUIET_S)
            if self._stop:
                return
            x, names, labels = self.moment().support()
            known = self._left_out
            if known is not None and known[0] == labels:
                continue
            found = leave_one_out(self.recipe, x, names, self._something_new.is_set) if len(names) else None
            if self._something_new.is_set():
                continue
            with self.lock:
                self._left_out = (labels, found)
                self.revision += 1
            for listener in list(self.listeners):
                listener()

    # ---- answers --------------------------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """How this project's classifier is made."""
        return Recipe(self.settings.bank, self.settings.preset, float(self.store.meta("beta") or 1.0))

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
                self.left_out,
            )

    def answers(self) -> Answered:
        """The answers to the project as it is now, computed where they are not known yet.

        Meanwhile labels may change and features arrive: fits are made one at a time, but nobody else waits for them.
        """
        with self._fitting:
            self._answered = answered(self.moment(), self._answered)
            return self._answered

    @property
    def class_names(self) -> dict[int, str]:
        """Names by id, "none of these" among them."""
        return self.store.classes() | {NONE_CLASS: NONE_OF_THESE}

    def progress(self) -> Progress:
        """How far the features are."""
        return self._embedder.progress()

    @property
    def left_out(self) -> LeftOut | None:
        """How examples were answered that were left out, for the labels of a moment ago."""
        return None if self._left_out is None else self._left_out[1]
