"""How fast streaming rules converge, measured against exact components."""
