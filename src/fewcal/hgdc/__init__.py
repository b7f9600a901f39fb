"""HGDC: a hierarchical Gaussian model of class means, the model that fewcal recommends.

- `prior`: base classes as the prior of a class mean, its posterior, and the offset of a task
- `discriminant`: a linear discriminant with the scatter of the support, and its scores of left-out rows
- `temperature`: the ridge, the scale of the scores and the stacking weight, from tasks of left-out base classes
- `mixture`: the support-only classifier, and its mixture with the model
- `transduction`: unlabelled rows, by expectation maximization over the posterior
- `names`: names of classes as a second term of the neighbour weights
"""
