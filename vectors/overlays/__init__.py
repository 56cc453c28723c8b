"""Golden states of the overlays, and the code that writes them."""
