"""Few-shot tasks, deterministic by (seed, task index) alone.

Task t of a seed is the same whatever the batch, the worker or the device: its random numbers are a hash of
(seed, t, position), computed for all tasks of a batch at once. A task draws N classes, then distinct rows of each by a
partial Fisher-Yates shuffle: the first K are its support, the next Q its queries.

`replacement=True`, the custom of the field, draws each task from all rows, so rows and classes recur.
`replacement=False` deals the rows of a class like cards. A pass begins with every class shuffled, and each task takes
the next K + Q rows of its classes. Where a class has too few left, a new pass begins with that task, so no row is used
twice within a pass. How far earlier tasks have dealt is computed from the seed, never from earlier calls.

Unbalanced tasks have the classes and the support of the balanced ones. The rest is drawn task by task: the class shares
of the queries from a Dirichlet distribution (Veilleux et al., NeurIPS 2021), which classes have queries, queries of
other classes, and ways and shots (Triantafillou et al., Meta-Dataset, ICLR 2020).
"""

from fewcal.episodes.batch import Episodes, Group, labels_fingerprint
from fewcal.episodes.draw import Sampler, sample_episodes
from fewcal.episodes.spec import EpisodeSpec

__all__ = ["EpisodeSpec", "Episodes", "Group", "Sampler", "labels_fingerprint", "sample_episodes"]
