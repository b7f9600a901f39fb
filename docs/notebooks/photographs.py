# %% [markdown]
# # Photographs
#
# A few photographs of each class, and new ones to sort. `make docs` executes this page; its script is
# `docs/notebooks/photographs.py`.
#
# The pictures here are tiles of two photographs that come with scikit-learn. In place of them, give a folder with one
# folder for each class, a list of files, or a table with the columns `path` and `label`.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from PIL import Image
from sklearn.datasets import load_sample_images

import fewcal

SIDE = 40
PLACES = {  # photograph, left, top, right, bottom
    "sky": (0, 340, 0, 640, 190),
    "roofs": (0, 90, 80, 320, 340),
    "lake": (0, 360, 220, 545, 310),
    "trees": (0, 330, 300, 560, 427),
    "petals": (1, 200, 110, 420, 340),
    "shade": (1, 440, 0, 640, 420),
}
photographs = [Image.fromarray(x) for x in load_sample_images().images]
tiles = pd.DataFrame(
    [
        (photographs[n].crop((x, y, x + SIDE, y + SIDE)), name)
        for name, (n, left, top, right, bottom) in PLACES.items()
        for x in range(left, right - SIDE + 1, SIDE)
        for y in range(top, bottom - SIDE + 1, SIDE)
    ],
    columns=["picture", "label"],
)
tiles.label.value_counts()

# %% [markdown]
# ## Features
#
# `Embed` is a scikit-learn transformer: pictures in, features out. EfficientNet-Lite0 is inside a package, so nothing
# is downloaded. `hf:`, `timm:`, `open_clip:` and `onnx:` name other extractors.

# %%
features = fewcal.Embed("efficientnet-lite0").fit_transform([np.asarray(tile) for tile in tiles.picture])
features.shape

# %% [markdown]
# ## Two examples of each class

# %%
rng = np.random.default_rng(0)
examples = np.concatenate([rng.permutation(rows)[:2] for rows in tiles.groupby("label").indices.values()])
new = np.setdiff1d(np.arange(len(tiles)), examples)
labels = tiles.label.to_numpy(str)

classifier = fewcal.FewShotClassifier().fit(features[examples], labels[examples])
print(f"{classifier.score(features[new], labels[new]):.1%} of {len(new)} new tiles are right")

# %%
answers = classifier.predict(features[new])
sure = classifier.predict_proba(features[new]).max(axis=1)
figure, axes = plt.subplots(2, 6, figsize=(9, 3.6))
for axis, i in zip(axes.flat, np.argsort(sure)[:12], strict=True):
    axis.imshow(tiles.picture[new[i]])
    axis.set_title(f"{answers[i]} {sure[i]:.0%}", fontsize=9)
    axis.set_axis_off()
figure.suptitle("The twelve answers that are least sure")
plt.show()

# %% [markdown]
# ## Are the labels right?
#
# Every example gets an answer from a classifier that has not seen it. One label is made wrong here, to be found.

# %%
from fewcal.apply.check import check_examples

wrong = labels.copy()
wrong[0] = "petals"
check = check_examples(features, wrong, fewcal.FewShotClassifier)
check

# %%
pd.DataFrame([suspect.to_dict() for suspect in check.suspects])

# %% [markdown]
# ## Keep it
#
# A file without code, which `fewcal predict`, `fewcal serve` and `FewShotClassifier.load` read; and the same as ONNX,
# for other languages.

# %%
from pathlib import Path
from tempfile import mkdtemp

folder = Path(mkdtemp())
classifier.save(folder / "tiles.fewcal")
classifier.to_onnx(folder / "tiles.onnx")
{file.name: file.stat().st_size for file in sorted(folder.iterdir())}
