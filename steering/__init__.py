"""Steering: sentence functions, activations, clustering and vectors (offline); the adaptive controller (online)."""
