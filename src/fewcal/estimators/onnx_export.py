"""A fitted classifier as an ONNX graph, for ONNX Runtime in any language.

    X (Q, D) float32  →  label (Q,) int64 or string,  probabilities (Q, N) float32

The map of features, one matrix product and a softmax. The power transform is computed in double precision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._version import __version__
from fewcal.errors import InputError
from fewcal.gaussianize import MIN_LENGTH, Gaussianization
from fewcal.heads.linear import LinearHead
from fewcal.methods.hgdc import TwoViews

if TYPE_CHECKING:
    from fewcal.estimators.base import TaskClassifier

# Read by every ONNX Runtime since 1.15.
OPSET, IR_VERSION = 18, 8


class Graph:
    """Nodes and constants of an ONNX graph; `add` returns the name of the output."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise InputError("ONNX files need the package onnx: pip install 'fewcal[onnx]'") from error
        self.onnx: Any = onnx
        self.nodes: list[object] = []
        self.constants: list[object] = []

    def constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def cast(self, x: str, kind: str) -> str:
        return self.add("Cast", x, to=getattr(self.onnx.TensorProto, kind))

    def unit_rows(self, x: str) -> str:
        length = self.add("ReduceL2", x, self.constant(np.array([1])), keepdims=1)
        return self.add("Div", x, self.add("Max", length, self.constant(np.float32(MIN_LENGTH))))

    def power(self, x: str, g: Gaussianization) -> str:
        """`Gaussianization.power`."""
        if g.kind == "none" or (g.beta == 1 and g.kind != "signed-power"):
            return x
        number = lambda v: self.constant(np.float64(v))  # noqa: E731
        beta, z = g.beta, self.cast(x, "DOUBLE")
        if g.kind == "signed-power":
            z = self.add("Mul", self.add("Sign", z), self.add("Pow", self.add("Abs", z), number(beta)))
        elif g.kind == "yeo-johnson":
            up, down = (self.add("Max", side, number(0)) for side in (z, self.add("Neg", z)))
            z = self.add("Sub", self._box_cox(up, beta), self._box_cox(down, 2 - beta))
        elif beta == 0:
            z = self.add("Log", self.add("Add", z, number(g.eps)))
        else:
            z = self.add("Pow", self.add("Add", z, number(g.eps)) if beta < 0 else z, number(beta))
        return self.cast(z, "FLOAT")

    def _box_cox(self, x: str, beta: float) -> str:
        """((x + 1)^β − 1)/β for x ≥ 0."""
        number = lambda v: self.constant(np.float64(v))  # noqa: E731
        x = self.add("Add", x, number(1))
        if beta == 0:
            return self.add("Log", x)
        return self.add("Div", self.add("Sub", self.add("Pow", x, number(beta)), number(1)), number(beta))

    def gaussianize(self, x: str, g: Gaussianization) -> str:
        """`Gaussianization.__call__`."""
        z = self.power(x, g)
        if g.mean is not None:
            z = self.add("Sub", z, self.constant(g.mean.float().numpy()))
        if g.scale is not None:
            z = self.add("Mul", z, self.constant(g.scale.float().numpy()))
        if g.whitening is not None:
            z = self.add("MatMul", z, self.constant(g.whitening.float().numpy()))
        return self.unit_rows(z) if g.l2 or g.whitening is not None else z

    def classify(self, rows: str, head: LinearHead) -> None:
        """Probabilities and the position of the largest."""
        weight = self.constant(np.ascontiguousarray(head.weight[0].float().numpy().T))
        scores = self.add("Add", self.add("MatMul", rows, weight), self.constant(head.bias[0].float().numpy()))
        self.add("Softmax", scores, axis=1, output="probabilities")
        self.add("Gather", "classes", self.add("ArgMax", scores, axis=1, keepdims=0), output="label")


def write_onnx(classifier: TaskClassifier, target: Path) -> Path:
    """Write a fitted classifier as ONNX; the file appears under its name only when it is complete."""
    head, row_map = classifier.head_, classifier.row_map_
    if not isinstance(head, LinearHead):
        raise InputError("a classifier with a scikit-learn head has no ONNX form here; use a named head")
    graph = Graph()
    if isinstance(row_map, TwoViews):
        model = graph.add("Sub", graph.gaussianize("X", row_map.model), graph.constant(row_map.origin.float().numpy()))
        rows = graph.add("Concat", model, graph.unit_rows("X"), axis=1)
    else:
        assert isinstance(row_map, Gaussianization)
        rows = graph.gaussianize("X", row_map)
    graph.classify(rows, head)
    with atomic_path(target) as temporary:
        graph.onnx.save(_model(graph, classifier), temporary)
    return target


def _model(graph: Graph, classifier: TaskClassifier) -> object:
    helper, types, classes = graph.onnx.helper, graph.onnx.TensorProto, classifier.classes_
    if whole := classes.dtype.kind in "iub":
        names = helper.make_tensor("classes", types.INT64, classes.shape, classes.astype(np.int64))
    else:
        texts = [str(c).encode() for c in classes.tolist()]
        names = helper.make_tensor("classes", types.STRING, classes.shape, texts)
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        graph.nodes,
        "fewcal",
        [value("X", types.FLOAT, ["rows", classifier.n_features_in_])],
        [
            value("label", types.INT64 if whole else types.STRING, ["rows"]),
            value("probabilities", types.FLOAT, ["rows", len(classes)]),
        ],
        [names, *graph.constants],
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fewcal",
        producer_version=__version__,
    )
    helper.set_model_props(model, {"extractor": classifier.extractor_ or "", "classes": _as_json(classes.tolist())})
    graph.onnx.checker.check_model(model)
    return model


def _as_json(classes: Sequence[object]) -> str:
    return json.dumps(classes, ensure_ascii=False, default=str)
