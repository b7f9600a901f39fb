"""Classifiers as ONNX graphs, against `predict_proba`, computed by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fewcal import FewShotClassifier, GDCClassifier
from fewcal.cli import main
from fewcal.errors import InputError
from fewcal.estimators.base import TaskClassifier
from small_worlds import SmallData

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

Make = Callable[[SmallData], TaskClassifier]


def paper_gdc(kind: str, beta: float) -> Make:
    return lambda world: GDCClassifier(
        world.bank(), head="closed_form", alpha2_ratio=0, k=3, kind=kind, beta=beta, center=True, l2=True
    )


CLASSIFIERS: dict[str, Make] = {
    "support-only": lambda world: FewShotClassifier(),
    "hgdc": lambda world: FewShotClassifier(world.bank()),
    "no power": lambda world: FewShotClassifier(world.bank(), kurtosis=np.inf, spread=1.0),
    # Tukey's powers of features ≥ 0, Yeo-Johnson's of others.
    **{f"auto, beta={beta}": paper_gdc("auto", beta) for beta in (-0.5, 0.0, 0.3, 1.0, 2.0)},
    "signed-power": paper_gdc("signed-power", 0.5),
}


def answers(file: Path, x: np.ndarray) -> list[Any]:
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return list(session.run(["label", "probabilities"], {"X": x}))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_onnx_file_in_onnx_runtime_answers_as_the_classifier(name: str, world: SmallData, tmp_path: Path) -> None:
    classifier = CLASSIFIERS[name](world)
    classifier.fit(world.support[0], np.array(["ant", "bee", "çat"])[world.labels[0]])
    query = np.concatenate([world.query[0], np.zeros_like(world.query[0, :1])])
    label, probabilities = answers(classifier.to_onnx(tmp_path / "a.onnx"), query)
    np.testing.assert_allclose(probabilities, classifier.predict_proba(query), atol=1e-5)
    assert label.tolist() == classifier.predict(query).tolist()


def test_export_command_of_a_calibrated_classifier_keeps_integers_and_temperature(
    world: SmallData, tmp_path: Path
) -> None:
    classifier = FewShotClassifier(world.bank()).fit(world.support[0], 7 * world.labels[0]).set_temperature(2.5)
    classifier.save(tmp_path / "a.fewcal", extractor="net@0123")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "a.fewcal"), str(tmp_path / "a.onnx")])
    assert end.value.code == 0
    label, probabilities = answers(tmp_path / "a.onnx", world.query[0])
    np.testing.assert_allclose(probabilities, classifier.predict_proba(world.query[0]), atol=1e-5)
    assert (label.dtype, label.tolist()) == (np.int64, classifier.predict(world.query[0]).tolist())
    meta = runtime.InferenceSession(str(tmp_path / "a.onnx")).get_modelmeta().custom_metadata_map
    assert meta == {"extractor": "net@0123", "classes": "[0, 7, 14]"}


def test_onnx_export_of_a_scikit_learn_head_is_refused(world: SmallData, tmp_path: Path) -> None:
    classifier = GDCClassifier(world.bank(), head=LogisticRegression(), alpha2_ratio=0, k=3).fit(
        world.support[0], world.labels[0]
    )
    with pytest.raises(InputError, match="use a named head"):
        classifier.to_onnx(tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
