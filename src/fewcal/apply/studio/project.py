"""A studio project: the store, the background features and the answers, for any number of open pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

import numpy as np

from fewcal.apply.classify import check_same_extractor
from fewcal.apply.predict import NONE_OF_THESE
from fewcal.apply.studio.answers import (
    MOST_PAIRED,
    Estimate,
    Recipe,
    doubt,
    fitted,
    label_next,
    leave_one_out,
    similarities,
    spaced,
)
from fewcal.apply.studio.embedder import Embedder, Progress
from fewcal.apply.studio.intake import (
    Limits,
    checked_texts,
    inside,
    is_text_file,
    keep_picture,
    safe_file_name,
    scan,
    texts_of,
)
from fewcal.apply.studio.store import NONE_CLASS, Edit, Item, ProjectStore, checked_class_name
from fewcal.bank import BaseBank
from fewcal.errors import InputError
from fewcal.features.extractors import Extractor, as_extractor
from fewcal.features.sources.kinds import DEFAULT_EXTRACTORS

if TYPE_CHECKING:
    from fewcal.estimators.few_shot import FewShotClassifier

MOST_SUGGESTED = 6
QUIET_S = 0.4  # without a change before the accuracy is estimated


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
    preset: str = "default"
    device: str | None = None
    base_picture: Callable[[str], bytes | None] | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, eq=False)
class Answered:
    """Answers to one state of labels and features: `ids (R,)` and `x (R, D)` of the ready items."""

    ids: list[int]
    x: np.ndarray
    classifier: FewShotClassifier | None
    columns: list[int]  # class id of each column of probabilities
    probabilities: np.ndarray | None  # (R, N)
    outliers: np.ndarray | None  # (R,) p-values of "none of these", with a bank
    suggested: list[int]  # items to label next, the best first
    labels: dict[int, int]


class Studio:
    """A project in a folder. All methods may be called from any thread.

    `listeners` are called with nothing whenever there is something new to see; `revision` counts such events.
    Labels change, and the answers to them are forgotten, while `lock` is held: who holds it reads both of one moment.
    """

    def __init__(self, folder: Path, settings: StudioSettings | None = None) -> None:
        self.folder, self.settings = folder, settings or StudioSettings()
        folder.mkdir(parents=True, exist_ok=True)
        self.store = ProjectStore(folder)
        self.listeners: list[Callable[[], None]] = []
        self.revision = 0
        self.lock = threading.RLock()
        self._answered: Answered | None = None
        self._features: tuple[list[int], np.ndarray] | None = None
        self._similar: tuple[tuple[int, ...], np.ndarray] | None = None
        self._estimate: tuple[dict[int, int], Estimate | None] | None = None
        self._estimating = threading.Event()
        self._stop = False
        self._embedder = Embedder(self.store, folder, self._make_extractor, self._embedded)
        self._estimator = threading.Thread(target=self._estimate_loop, name="fewcal-estimate", daemon=True)

    def start(self) -> None:
        """Look through the folder and begin to work in the background."""
        wanted = self.settings.extractor
        stamp = self.store.meta("extractor")
        if stamp and wanted is not None:
            given = wanted.stamp if isinstance(wanted, Extractor) else wanted
            if stamp not in (given, None) and stamp.partition("@")[0] != given:
                self.store.forget_features()
        self.rescan()
        self._embedder.start()
        self._estimator.start()
        self._estimating.set()

    def close(self) -> None:
        """Finish what is at hand and close the file."""
        self._stop = True
        self._estimating.set()
        self._embedder.stop()
        if self._estimator.is_alive():
            self._estimator.join(timeout=30)
        self.store.close()

    # ---- items ----------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str | None:
        """ "picture", "text", or None as long as the project is empty."""
        if isinstance(self.settings.extractor, Extractor):
            return self.settings.extractor.kind
        return self.store.meta("kind")

    def rescan(self) -> int:
        """Take in what is new in the folder, and mark what is gone; the number of new items."""
        found = scan(self.folder)
        if self.kind is not None:
            found = [pair for pair in found if (pair[1] is None) == (self.kind == "picture")]
        known = self.store.items()
        names = {name for name, _ in found}
        here = [i for i in known if i.text is None and i.name not in names and not self._exists(i)]
        self.store.mark_gone(i.id for i in here)
        return self._add(found)

    def _exists(self, item: Item) -> bool:
        try:
            return inside(self.folder, item.name).is_file()
        except InputError:
            return False

    def add_file(self, name: str, data: bytes) -> list[int]:
        """Take in a dropped file: a picture, or a file of texts; the ids of its items, new or known."""
        if not is_text_file(name):
            self._check_kind("picture")
            kept = keep_picture(self.folder, name, data, self.settings.limits)
            self._add([(kept, None)])
            return self.store.ids([kept])
        self._check_kind("text")
        name = safe_file_name(name, "texts.txt")
        temporary = self.store.path.with_name(f"incoming{Path(name).suffix.lower()}")
        with self.lock:
            try:
                temporary.write_bytes(data)
                found = texts_of(temporary, name)
            except ValueError as error:
                raise InputError(str(error).replace(str(temporary), name)) from error
            finally:
                temporary.unlink(missing_ok=True)
        checked_texts([text or "" for _, text in found], self.settings.limits)
        self._add(found)
        return self.store.ids([name for name, _ in found])

    def add_texts(self, texts: Sequence[str]) -> int:
        """Take in texts that were typed or pasted; the number of new items."""
        kept = checked_texts(texts, self.settings.limits)
        self._check_kind("text")
        known = {item.text for item in self.store.items()}
        start = len(self.store.items())
        fresh = [t for t in dict.fromkeys(kept) if t not in known]
        return self._add([(f"typed {start + n + 1}", text) for n, text in enumerate(fresh)])

    def _check_kind(self, kind: str) -> None:
        if self.kind not in (None, kind):
            raise InputError(f"this project holds {self.kind}s; make another folder for {kind}s")

    def _add(self, found: Sequence[tuple[str, str | None]]) -> int:
        if not found:
            return 0
        names = {item.name for item in self.store.items()} | {name for name, _ in found}
        if len(names) > self.settings.limits.items:
            raise InputError(f"a project takes at most {self.settings.limits.items} items, not {len(names)}")
        if self.store.meta("kind") is None:
            self.store.set_meta("kind", "text" if found[0][1] is not None else "picture")
        added = self.store.add_items(found)
        if self.store.count("waiting"):
            self._embedder.wake()
        if added:
            self._changed()
        return added

    # ---- classes and labels ---------------------------------------------------------------------------------------

    def add_class(self, name: str) -> int:
        """A new class; its id."""
        with self.lock:
            name = checked_class_name(name, self.store.classes().values(), NONE_OF_THESE)
            number = self.store.next_class_id()
            self._record(Edit(f"class {name} added", classes={number: (None, name)}))
            return number

    def rename_class(self, number: int, name: str) -> None:
        with self.lock:
            before = self._class(number)
            others = [n for i, n in self.store.classes().items() if i != number]
            name = checked_class_name(name, others, NONE_OF_THESE)
            if name != before:
                self._record(Edit(f"class {before} renamed to {name}", classes={number: (before, name)}))

    def remove_class(self, number: int) -> None:
        """Remove a class; its items lose their labels."""
        with self.lock:
            name = self._class(number)
            labels: dict[int, tuple[int | None, int | None]]
            labels = {item: (number, None) for item, label in self.store.labels().items() if label == number}
            self._record(Edit(f"class {name} removed", labels, {number: (name, None)}))

    def assign(self, items: Sequence[int], number: int | None) -> None:
        """Give items a class, 0 for "none of these", or None to take their label away."""
        with self.lock:
            name = "no class" if number is None else self._class(number)
            labels = self.store.labels()
            shown = [self.store.item(i) for i in items]
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
        self.store.set_meta("beta", repr(extractor.beta))
        return extractor

    def _embedded(self) -> None:
        with self.lock:
            self._features = None
            self._changed()

    def _changed(self) -> None:
        with self.lock:
            self._answered = None
            self.revision += 1
        self._estimating.set()
        for listener in list(self.listeners):
            listener()

    def _warm_up(self) -> None:
        """What the first fit prepares of a bank takes seconds; done before there are labels, nobody waits for it."""
        bank = self.settings.bank
        rows = np.random.default_rng(0).random((2, 4 if bank is None else bank.dim), np.float32)
        with catch_warnings():
            simplefilter("ignore")
            fitted(self.recipe, rows, np.array(["a", "b"]))

    def _estimate_loop(self) -> None:
        """Leave-one-out takes as many fits as there are labels: answers do not wait for it."""
        self._warm_up()
        while True:
            self._estimating.wait()
            # While somebody labels, the answers have the processor to themselves.
            while self._estimating.is_set() and not self._stop:
                self._estimating.clear()
                self._estimating.wait(QUIET_S)
            if self._stop:
                return
            x, names, labels = self.support()
            known = self._estimate
            if known is not None and known[0] == labels:
                continue
            estimate = leave_one_out(self.recipe, x, names, self._estimating.is_set) if len(names) else None
            if self._estimating.is_set():
                continue
            with self.lock:
                self._estimate = (labels, estimate)
                self.revision += 1
            for listener in list(self.listeners):
                listener()

    # ---- answers --------------------------------------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """How this project's classifier is made."""
        return Recipe(self.settings.bank, self.settings.preset, float(self.store.meta("beta") or 1.0))

    def ready(self) -> tuple[list[int], np.ndarray]:
        """Ids and features `(R, D)` of the items that have some."""
        with self.lock:
            if self._features is None:
                self._features = self.store.features()
            return self._features

    def support(self) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Features and class names of the labelled items that have features, and their labels by item."""
        with self.lock:
            ids, x = self.ready()
            labels, names = self.store.labels(), self.class_names
        at = [n for n, i in enumerate(ids) if i in labels]
        used = {ids[n]: labels[ids[n]] for n in at}
        return x[at], np.array([names[label] for label in used.values()], dtype=str), used

    def answers(self) -> Answered:
        """Answers to the present labels, computed where they are not known yet."""
        with self.lock:
            if self._answered is None:
                self._answered = self._compute()
            return self._answered

    def _compute(self) -> Answered:
        ids, x = self.ready()
        support, names, labels = self.support()
        classifier = fitted(self.recipe, support, names)
        by_name = {name: i for i, name in self.store.classes().items()} | {NONE_OF_THESE: NONE_CLASS}
        probabilities = outliers = None
        columns: list[int] = []
        if classifier is not None:
            probabilities = classifier.predict_proba(x)
            columns = [by_name[str(name)] for name in classifier.classes_]
            if self.reject is not None:
                outliers = classifier.outlier_pvalue(x)
        suggested = self._suggested(ids, x, labels, probabilities)
        return Answered(ids, x, classifier, columns, probabilities, outliers, suggested, labels)

    def _suggested(
        self, ids: list[int], x: np.ndarray, labels: dict[int, int], probabilities: np.ndarray | None
    ) -> list[int]:
        if not ids:
            return []
        labelled = np.array([i in labels for i in ids])
        doubts = np.ones(len(ids)) if probabilities is None else doubt(probabilities)
        # All labelled items and an even sample of the others.
        free = np.flatnonzero(~labelled)
        at = np.sort(np.concatenate([np.flatnonzero(labelled), free[spaced(len(free), MOST_PAIRED)]]))
        key = tuple(ids[n] for n in at)
        if self._similar is None or self._similar[0] != key:
            self._similar = (key, similarities(x[at], self.recipe.beta))
        order = label_next(self._similar[1], labelled[at], doubts[at], MOST_SUGGESTED)
        return [ids[at[n]] for n in order]

    def answer_of(self, answered: Answered, n: int) -> int | None:
        """The class id that row n of `answered` gets; None before there are answers."""
        if answered.probabilities is None:
            return None
        if answered.outliers is not None and self.reject is not None and answered.outliers[n] >= self.reject:
            return NONE_CLASS
        return answered.columns[int(answered.probabilities[n].argmax())]

    @property
    def class_names(self) -> dict[int, str]:
        """Names by id, "none of these" among them."""
        return self.store.classes() | {NONE_CLASS: NONE_OF_THESE}

    def progress(self) -> Progress:
        """How far the features are."""
        return self._embedder.progress()

    @property
    def estimate(self) -> Estimate | None:
        """The accuracy to expect, for the labels of a moment ago."""
        return None if self._estimate is None else self._estimate[1]
