"""The classifier without base classes: a regularised linear discriminant on the support alone."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from fewcal.heads.linear import LinearHead

# Ridge of the plain discriminant, in units of D/(rows − classes). Chosen on real features: 3 was never more than 0.3
# points below nearest centroid and up to 1.2 above; Ledoit-Wolf-like shrinkage lost up to 5.
PLAIN_RIDGE = 3.0
# What a few rows cannot say: how far scores of its own class lead. With 8, mean confidence and accuracy are near each
# other at one shot on validation classes of CUB, Dogs and miniImageNet (60/58, 68/61, 59/52%); with 4 and 12 the log
# loss is higher on two of them and on all.
USUAL_LEAD = 8.0


def plain_discriminant(x: np.ndarray, codes: np.ndarray) -> LinearHead:
    """The classifier without base classes (see `GDCClassifier`, Notes), for rows `x (S, D)`.

    >>> head = plain_discriminant(np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 1]))
    >>> head.logits(torch.tensor([[[0.5], [4.0]]], dtype=torch.float64)).argmax(-1)
    tensor([[0, 1]])
    """
    shots = np.bincount(codes)
    origin = x.mean(axis=0)
    x = x - origin
    means = np.stack([x[codes == c].mean(axis=0) for c in range(len(shots))])
    residuals = (x - means[codes])[shots[codes] > 1]
    freedom = len(x) - len(shots)
    # tr S and the ridge follow from the residuals; below, S is only ever used through their singular vectors.
    trace = np.square(residuals).sum() / max(freedom, 1)
    if trace <= 1e-24 * max(np.square(x).mean(), 1e-300):
        weight = means  # one shot has no width: the spread of the class means stands in
        temperature = _usual_temperature(means, weight)
    else:
        _, singular, right = np.linalg.svd(residuals, full_matrices=False)
        ridge = PLAIN_RIDGE * trace / freedom
        gain = 1 / (np.square(singular) / freedom + ridge) - 1 / ridge
        precision_x = x / ridge + ((x @ right.T) * gain) @ right
        weight = np.stack([precision_x[codes == c].mean(axis=0) for c in range(len(shots))])
        scores = _leave_one_out(x, precision_x, means, weight, codes, shots)
        temperature = _temperature(scores, codes, shots, _usual_temperature(means, weight))
    weight = temperature * weight
    bias = -0.5 * (weight * means).sum(axis=1) - weight @ origin
    return LinearHead(torch.from_numpy(weight)[None], torch.from_numpy(bias)[None])


def _leave_one_out(
    x: np.ndarray, precision_x: np.ndarray, means: np.ndarray, weight: np.ndarray, codes: np.ndarray, shots: np.ndarray
) -> np.ndarray:
    """Scores of each row with its own class mean taken without it, `(S, N)`."""
    scores = x @ weight.T - 0.5 * (weight * means).sum(axis=1)
    left = np.maximum(shots[codes] - 1, 1)[:, None]
    own_mean = means[codes] + (means[codes] - x) / left
    own_weight = weight[codes] + (weight[codes] - precision_x) / left
    scores[np.arange(len(x)), codes] = (own_weight * (x - 0.5 * own_mean)).sum(axis=1)
    return scores


def _usual_temperature(means: np.ndarray, weight: np.ndarray) -> float:
    """The factor that puts a class mean ahead of the others by `USUAL_LEAD` on average, whatever the scale."""
    gaps = ((means - means.mean(axis=0)) * (weight - weight.mean(axis=0))).sum() / (len(means) - 1)
    return USUAL_LEAD / max(float(gaps), 1e-300)


def _temperature(scores: np.ndarray, codes: np.ndarray, shots: np.ndarray, usual: float) -> float:
    """The factor on the scores that makes the left-out rows most likely.

    Few rows say little. All answered rightly they would ask for certainty: so each counts for its class but for a
    share of 1/(rows + 2), as in the rule of succession, that is spread over all classes. Answered badly, as two shots
    often are with one left out, they would ask for a coin: so log t has the normal prior N(log usual, 1).
    """
    known = np.flatnonzero(shots[codes] > 1)
    scores, target = scores[known], codes[known]
    scores = scores - scores.max(axis=1, keepdims=True)
    doubt = 1 / (len(target) + 2)
    own = (1 - doubt) * scores[np.arange(len(target)), target] + doubt * scores.mean(axis=1)
    centre = np.log(usual)

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        return float((logsumexp(t * scores, axis=1) - t * own).sum() + 0.5 * (log_t - centre) ** 2)

    return float(np.exp(minimize_scalar(loss, bounds=(centre - 6, centre + 6), method="bounded").x))
