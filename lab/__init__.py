"""The lab: a hub and its clients over a simulated disk, clock, network and scheduler. One seed is one run."""
