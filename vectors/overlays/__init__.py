"""Golden states of the overlays, and the code that generates them."""
