"""Evaluation: tasks, grading, running methods on them, comparing, reporting."""
