"""Decoders: from events to states, one step at a time. All of them are plain Python and plain data."""

from tidemill.monitors.decoders.fit import fit
from tidemill.monitors.decoders.hmm import Filter, Hmm, PathState, Viterbi, decode
from tidemill.monitors.decoders.signals import Ewma, Hysteresis, Rate
from tidemill.monitors.decoders.tree_distance import Distances, Tree, distance

__all__ = [
    "Distances",
    "Ewma",
    "Filter",
    "Hmm",
    "Hysteresis",
    "PathState",
    "Rate",
    "Tree",
    "Viterbi",
    "decode",
    "distance",
    "fit",
]
