"""Files only: problems and the small reasoner. Nothing here is imported by the other rooms."""
