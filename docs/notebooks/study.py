# %% [markdown]
# # A study
#
# Methods on the same few-shot tasks, with intervals and paired differences. `make docs` executes this page; its script
# is `docs/notebooks/study.py`. The features are made up, with the structure that calibration lives on; load yours with
# `FeatureSet.load(folder)`.

# %%
import matplotlib.pyplot as plt

import fewcal
from fewcal.features.synthetic import make_features

features = make_features(base=64, val=16, novel=20, rows=100, dim=64)
METHODS = ["ncm", "simpleshot", "support-only", "hgdc"]

# %% [markdown]
# ## One shot
#
# Every method gets the same tasks. The first table has means over tasks, the second the differences on the same tasks.

# %%
one_shot = fewcal.evaluate(METHODS, features, fewcal.Protocol(way=5, shot=1, query=15, tasks=200))
one_shot

# %% [markdown]
# ## By the number of examples

# %%
SHOTS = (1, 2, 5, 10)
runs = {k: fewcal.evaluate(METHODS, features, fewcal.Protocol(way=5, shot=k, query=15, tasks=200)) for k in SHOTS}
for name in METHODS:
    plt.plot(SHOTS, [100 * runs[k].accuracy(name).mean() for k in SHOTS], marker="o", label=name)
plt.xlabel("examples a class")
plt.ylabel("accuracy %")
plt.xscale("log")
plt.xticks(SHOTS, [str(k) for k in SHOTS])
plt.legend()
plt.show()

# %% [markdown]
# ## In scikit-learn
#
# The classifier is an estimator: pipelines, searches and cross-validation take it.

# %%
import numpy as np
from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score

novel = features.novel
bank = fewcal.BaseBank().fit(features.base.features, features.base.require_labels())
splits = StratifiedShuffleSplit(n_splits=10, train_size=20 * 2, test_size=20 * 20, random_state=0)
for name, classifier in {
    "with base classes": fewcal.FewShotClassifier(bank),
    "without": fewcal.FewShotClassifier(),
}.items():
    scores = cross_val_score(classifier, novel.features, novel.require_labels(), cv=splits)
    print(f"20 classes, two examples each, {name}: {np.mean(scores):.1%}")
