"""What the checks of this project run on; not part of the distribution."""
