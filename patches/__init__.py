"""Binds the core to transformers models: which families, where their parts are, apply and undo."""
