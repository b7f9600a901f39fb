"""Fit and predict with nothing but the installed package: for a fresh environment without extras."""

from fewcal import BaseBank, FewShotClassifier
from fewcal.features.synthetic import make_features

data = make_features(base=40, novel=5, rows=10)
bank = BaseBank().fit(data.base.features, data.base.labels)
x, y = data.novel.features, data.novel.labels
few = [10 * n for n in range(5)]
accuracy = FewShotClassifier(bank).fit(x[few], y[few]).score(x, y)
print(f"accuracy {accuracy:.2f} of five classes, chance 0.20")
assert accuracy > 0.4
