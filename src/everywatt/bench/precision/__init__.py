"""The precision lab: one model at several precisions, each in a process of its own, with energy and accuracy."""
